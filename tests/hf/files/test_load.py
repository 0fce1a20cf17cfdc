"""Loading folders: fresh heads, mismatches, sources; nothing is loaded in part."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from flodl.core import HFError
from flodl.hf import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

CONFIG = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
    "a_field_of_the_future": [1, 2],
}


@pytest.fixture
def folder(tmp_path):
    AutoModelForSequenceClassification.from_config(CONFIG, seed=1).export(tmp_path / "model")
    return tmp_path / "model"


def change_config(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    config.update(fields)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_base_checkpoint_gets_a_fresh_head_that_depends_on_the_seed_only(folder, tmp_path, capsys):
    AutoModel.from_pretrained(folder).export(tmp_path / "base")
    capsys.readouterr()
    model = AutoModelForTokenClassification.from_pretrained(tmp_path / "base", num_labels=5, seed=3)
    assert model.load_report.missing == ("classifier.weight", "classifier.bias")
    assert model.load_report.seed == 3
    shown = capsys.readouterr().out
    assert "2 missing, newly initialized with seed 3 (classifier.weight, classifier.bias)" in shown
    state = torch.get_rng_state()
    again = AutoModelForTokenClassification.from_pretrained(tmp_path / "base", num_labels=5, seed=3)
    other = AutoModelForTokenClassification.from_pretrained(tmp_path / "base", num_labels=5, seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    weights = [one.graph.get_parameter("classifier.weight") for one in (model, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not model.training


def test_other_labels_give_a_new_head_only_if_they_are_requested(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder, labels=["a", "b", "c"])
    assert model.config.labels == ("a", "b", "c")
    assert model.load_report.missing == ("classifier.weight", "classifier.bias")
    assert "num_labels=3 was requested" in model.load_report.dropped["classifier.weight"]
    change_config(folder, id2label={"0": "a", "1": "b", "2": "c"})
    with pytest.raises(HFError, match=r"'classifier.\w+' has shape \(2.*describes.*\(3.*num_labels="):
        AutoModelForSequenceClassification.from_pretrained(folder)


def test_the_same_number_of_labels_keeps_the_head(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder, labels=["no", "yes"])
    assert not model.load_report.missing
    assert model.config.labels == ("no", "yes")


def test_unknown_fields_survive_and_the_class_changes_with_the_head(folder, tmp_path):
    AutoModelForTokenClassification.from_pretrained(folder, labels=["O", "B"]).export(tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["a_field_of_the_future"] == [1, 2]
    assert config["architectures"] == ["BertForTokenClassification"]
    assert config["id2label"] == {"0": "O", "1": "B"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: tensors.pop("bert.encoder.layer.1.output.dense.weight"),
            r"model\.safetensors has no tensor bert\.encoder\.layer\.1\.output\.dense\.weight",
        ),
        (
            lambda tensors: tensors.update({"bert.pooler.dense.bias": torch.zeros(3)}),
            r"model\.safetensors: the tensor 'bert\.pooler\.dense\.bias' has shape \(3,\).*\(16,\)",
        ),
        (
            lambda tensors: tensors.update({"bert.pooler.dense.bias": torch.zeros(16, dtype=torch.int32)}),
            r"'bert\.pooler\.dense\.bias' has the type torch\.int32; expected float32",
        ),
        (
            lambda tensors: tensors.update({"pooler.dense.bias": torch.zeros(16)}),
            r"model\.safetensors: .*two tensors for one parameter",
        ),
    ],
)
def test_a_checkpoint_that_does_not_match_names_the_file_and_the_tensor(folder, change, message):
    change_tensors(folder, change)
    with pytest.raises(HFError, match=message):
        AutoModelForSequenceClassification.from_pretrained(folder)


@pytest.mark.parametrize(
    "field",
    ["vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings"],
)
def test_sizes_that_the_weights_cannot_have_are_rejected_before_anything_is_built(folder, field):
    change_config(folder, **{field: 10**12})
    with pytest.raises(HFError, match=r"config\.json says"):
        AutoModel.from_pretrained(folder)


def test_unexpected_tensors_are_reported(folder, capsys):
    change_tensors(folder, lambda tensors: tensors.update({"adapter.down": torch.zeros(2)}))
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.load_report.unexpected == ("adapter.down",)
    assert "1 unexpected, ignored (adapter.down)" in capsys.readouterr().out


def test_an_unknown_architecture_is_named_with_its_file(folder):
    change_config(folder, model_type="bart")
    with pytest.raises(HFError, match=r"config\.json: the architecture 'bart' is not supported"):
        AutoModel.from_pretrained(folder)


def test_an_override_names_the_architecture_of_an_old_config(folder):
    change_config(folder, model_type=None, architectures=None)
    with pytest.raises(HFError, match=r"Pass model_type="):
        AutoModel.from_pretrained(folder)
    assert AutoModel.from_pretrained(folder, model_type="bert").load_report.is_complete


def test_an_option_that_changes_the_result_is_rejected(folder):
    change_config(folder, is_decoder=True)
    with pytest.raises(HFError, match=r"model/config\.json: is_decoder is True"):
        AutoModel.from_pretrained(folder)


def test_fields_of_the_config_can_be_overridden_but_not_misspelled(folder):
    model = AutoModel.from_pretrained(folder, config={"hidden_dropout_prob": 0.3})
    assert model.config.dropout.hidden == 0.3
    with pytest.raises(HFError, match=r"'hidden_dropout_pro'.*Did you mean 'hidden_dropout_prob'"):
        AutoModel.from_pretrained(folder, config={"hidden_dropout_pro": 0.3})


def test_labels_that_disagree_with_their_number_are_tolerated(folder):
    change_tensors(
        folder,
        lambda tensors: tensors.update(
            {"classifier.weight": torch.zeros(5, 16), "classifier.bias": torch.zeros(5)}
        ),
    )
    change_config(folder, num_labels=5, id2label={"0": "a", "1": "b"})
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.config.labels == tuple(f"LABEL_{index}" for index in range(5))


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_file_of_torch_save_loads(folder, is_zip):
    tensors = load_file(folder / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    expected = AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    found = AutoModel.from_pretrained(folder)
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), expected.parameters()))


class Attack:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("is_zip", [True, False])
def test_nothing_in_a_file_of_torch_save_is_executed(folder, is_zip, capsys):
    (folder / "model.safetensors").unlink()
    torch.save({"a": Attack()}, folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    with pytest.raises(HFError, match=r"pytorch_model\.bin cannot be read safely.*Nothing was executed"):
        AutoModel.from_pretrained(folder)
    assert "executed" not in capsys.readouterr().out


def test_a_folder_in_sentence_transformers_layout_loads_and_is_exported_in_the_root(folder, tmp_path):
    root = tmp_path / "sentences"
    shutil.copytree(folder, root / "0_Transformer")
    (root / "1_Pooling").mkdir()
    (root / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    modules = [
        {"idx": 0, "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (root / "modules.json").write_text(json.dumps(modules))
    AutoModel.from_pretrained(root).export(tmp_path / "export")
    assert json.loads((tmp_path / "export/modules.json").read_text())[0]["path"] == ""
    assert (tmp_path / "export/1_Pooling/config.json").is_file()
    assert AutoModel.from_pretrained(tmp_path / "export").load_report.is_complete


@pytest.mark.parametrize("path", ["../model", "/etc", "a/../../b"])
def test_paths_that_lead_out_of_the_folder_are_rejected(folder, path):
    (folder / "modules.json").write_text(json.dumps([{"path": path, "type": "x.Transformer"}]))
    with pytest.raises(HFError, match=r"modules\.json: the path .* leads out of the folder"):
        AutoModel.from_pretrained(folder)
    (folder / "modules.json").unlink()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": path}}))
    with pytest.raises(HFError, match=r"index\.json: the tensor 'a' is in .* not a file of this folder"):
        AutoModel.from_pretrained(folder)


def test_a_missing_shard_and_a_wrong_index_are_named(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    places = dict.fromkeys(tensors, "model-00001-of-00002.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {**places, "x": "model-00002-of-00002.safetensors"}}))
    with pytest.raises(HFError, match=r"model-00002-of-00002\.safetensors is missing"):
        AutoModel.from_pretrained(folder)
    index.write_text(json.dumps({"weight_map": {**places, "x": "model-00001-of-00002.safetensors"}}))
    with pytest.raises(HFError, match=r"model-00001-of-00002\.safetensors has no tensor 'x'"):
        AutoModel.from_pretrained(folder)


def test_a_pointer_of_git_lfs_is_recognized(folder):
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(HFError, match=r"model\.safetensors .*git lfs pull"):
        AutoModel.from_pretrained(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, r"dtype='int8'; expected"),
        ({"device": "gpu"}, r"device='gpu' is not a device"),
        ({"num_labels": 0}, r"num_labels is 0"),
        ({"labels": ["a", "a"]}, r"'a' occurs twice"),
        ({"labels": ["a"], "num_labels": 2}, r"num_labels is 2, but labels has 1"),
        ({"seed": -1}, r"seed=-1"),
        ({"revision": "main"}, r"revision='main' has no meaning for the folder"),
    ],
)
def test_wrong_arguments_are_named(folder, options, message):
    with pytest.raises(HFError, match=message):
        AutoModelForSequenceClassification.from_pretrained(folder, **options)


def test_a_model_without_files_has_no_tokenizer(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with pytest.raises(HFError, match=r"has no tokenizer files"):
        model.tokenizer  # noqa: B018
    with pytest.raises(HFError, match=r"created from a config"):
        AutoModelForMaskedLM.from_config(CONFIG).tokenizer  # noqa: B018


def test_an_unknown_input_is_named(folder):
    model = AutoModel.from_pretrained(folder)
    with pytest.raises(HFError, match=r"BertModel has no input 'labels'"):
        model(torch.ones(1, 2, dtype=torch.long), labels=torch.ones(1))


def test_layers_that_the_config_does_not_have_are_dropped_only_if_that_is_requested(folder):
    change_config(folder, num_hidden_layers=1)
    with pytest.raises(
        HFError, match=r"'bert\.encoder\.layer\.1\.\S+', but config\.json describes .* 1 layers"
    ):
        AutoModel.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, config={"num_hidden_layers": 1})
    assert len(model.load_report.unexpected) == 16


def test_a_model_without_a_table_of_positions_may_have_many(tmp_path):
    sizes = {"max_position_embeddings": 8192, "local_attention": 4, "pad_token_id": 0}
    config = {**CONFIG, **sizes, "model_type": "modernbert", "architectures": ["ModernBertModel"]}
    AutoModel.from_config(config).export(tmp_path / "model")
    assert AutoModel.from_pretrained(tmp_path / "model").load_report.is_complete


@pytest.mark.parametrize("field", ["max_relative_positions", "max_position_embeddings", "position_buckets"])
def test_tables_are_not_computed_for_absurd_sizes(field, tmp_path):
    sizes = {"relative_attention": True, "pos_att_type": ["c2p"], "position_buckets": 4}
    config = {**CONFIG, **sizes, "model_type": "deberta-v2", "architectures": ["DebertaV2Model"]}
    AutoModel.from_config(config).export(tmp_path / "model")
    change_config(tmp_path / "model", **{field: 10**9})
    with pytest.raises(HFError, match=r"config\.json(:| says)"):
        AutoModel.from_pretrained(tmp_path / "model")


@pytest.mark.parametrize("field", ["num_hidden_layers", "num_hidden_groups", "inner_group_num"])
def test_an_absurd_number_of_layers_is_an_error_at_once(field, tmp_path):
    config = {**CONFIG, "model_type": "albert", "architectures": ["AlbertModel"], "embedding_size": 8}
    AutoModel.from_config(config).export(tmp_path / "model")
    change_config(tmp_path / "model", **{field: 10**9})
    with pytest.raises(HFError, match=r"config\.json(:| says)"):
        AutoModel.from_pretrained(tmp_path / "model")


def test_equal_names_of_a_checkpoint_are_a_warning_and_those_of_the_caller_an_error(tmp_path, capsys):
    folder, names = tmp_path / "model", {"0": "good", "1": "bad", "2": "bad"}
    AutoModelForSequenceClassification.from_config(CONFIG, num_labels=3).export(folder)
    change_config(folder, id2label=names, label2id={"good": 0, "bad": 2})
    config = CONFIG | {"id2label": names}
    load, create = (
        AutoModelForSequenceClassification.from_pretrained,
        AutoModelForSequenceClassification.from_config,
    )
    told = "id2label has the same name for several ids: 'bad' (1, 2). "
    for make in (lambda: load(folder), lambda: create(config)):
        capsys.readouterr()
        assert make().config.labels == ("good", "bad", "bad")
        assert f"{told}Predictions and metrics cannot tell" in capsys.readouterr().err
    with pytest.raises(HFError, match=r"several ids: 'bad' \(1, 2\)\. Pass labels"):
        load(folder, config={"id2label": names})
    capsys.readouterr()
    assert create(config, labels=["a", "b", "c"]).config.labels == ("a", "b", "c")
    load(folder, labels=["good", "bad", "worse"])
    AutoModel.from_pretrained(folder)
    assert "same name" not in capsys.readouterr().err
