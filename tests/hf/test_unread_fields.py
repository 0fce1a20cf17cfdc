"""Fields of a config dict that the architecture does not read cause a warning."""

import json

import pytest

from flodl.hf import AutoModelForSequenceClassification

from .families.test_models import CONFIGS, FAMILIES
from .tiny_models import tiny

from_config = AutoModelForSequenceClassification.from_config
BERT = {"model_type": "bert", **CONFIGS["bert"]}


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("dropout", "'dropout' (did you mean 'hidden_dropout_prob'?)"),
        ("attention_dropout", "'attention_dropout' (did you mean 'attention_probs_dropout_prob'?)"),
        ("hidden_dropout_probs", "'hidden_dropout_probs' (did you mean 'hidden_dropout_prob'?)"),
        ("cls_dropout", "'cls_dropout' (did you mean 'classifier_dropout'?)"),
        ("mlp_dropout", "'mlp_dropout' (a field of modernbert)"),
    ],
)
def test_a_field_that_is_misspelled_or_of_another_architecture_is_named(field, told, capsys):
    from_config({name: value for name, value in BERT.items() if told.find(repr(name)) < 0} | {field: 0.0})
    assert f"hf: bert ignores fields of the config: {told}" in capsys.readouterr().err


def test_all_such_fields_are_in_one_warning(capsys):
    fields = {name: value for name, value in BERT.items() if "dropout" not in name}
    from_config({**fields, "dropout": 0.0, "attention_dropout": 0.0})
    assert capsys.readouterr().err.count("ignores fields") == 1


def test_fields_of_your_own_and_of_every_config_json_cause_no_warning(capsys):
    from_config({**BERT, "my_note": "x", "torch_dtype": "float32", "bos_token_id": 1, "use_cache": True})
    assert "ignores fields" not in capsys.readouterr().err


@pytest.mark.parametrize("family", FAMILIES)
def test_the_fields_that_transformers_writes_cause_no_warning(family, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(family, **CONFIGS[family])
    from_config(json.loads(config.to_json_string(use_diff=False)))
    assert "ignores fields" not in capsys.readouterr().err


def test_a_config_json_on_disk_causes_no_warning_but_an_override_does(tmp_path, capsys):
    tiny("seqcls", tmp_path).export(folder := tmp_path / "saved")
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "mlp_dropout": 0.1}))
    from_config(folder)
    AutoModelForSequenceClassification.from_pretrained(folder)
    assert "ignores fields" not in capsys.readouterr().err
    AutoModelForSequenceClassification.from_pretrained(folder, config={"mlp_dropout": 0.0})
    assert "bert ignores fields of the config: 'mlp_dropout'" in capsys.readouterr().err
