"""`fdl hf`: export, verify, compare and convert models in folders."""

import json

import pytest
import torch
from safetensors.torch import load_file

from flodl import save_checkpoint
from flodl.cli import main
from flodl.hf import AutoModelForSequenceClassification, AutoModelForTokenClassification

CONFIG = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    AutoModelForSequenceClassification.from_config(CONFIG, seed=1).export("source")
    return tmp_path / "source"


def test_a_model_is_exported_and_verified(source, capsys):
    assert main(["hf", "export", "source", "--out", "out"]) == 0
    assert "Wrote out: 25 tensors in 2 files" in capsys.readouterr().out
    assert main(["hf", "verify-export", "out", "--source", "source", "--no-transformers"]) == 0
    shown = capsys.readouterr().out
    assert "ok       source: 25 tensors equal those of source, bit for bit" in shown
    assert "skipped  transformers" in shown


def test_an_export_is_not_overwritten_without_force(source, capsys):
    assert main(["hf", "export", "source", "--out", "source"]) == 1
    assert "already exists and is not empty" in capsys.readouterr().err
    assert main(["hf", "export", "source", "--out", "source", "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("whole", [True, False])
def test_trained_weights_are_exported(source, whole):
    model = AutoModelForSequenceClassification.from_pretrained(source)
    with torch.no_grad():
        model.graph.get_parameter("classifier.bias").fill_(0.25)
    save_checkpoint("best.fdl", (model if whole else model.graph).state_dict())
    assert main(["hf", "export", "source", "--weights", "best.fdl", "--out", "out"]) == 0
    assert load_file("out/model.safetensors")["classifier.bias"].tolist() == [0.25, 0.25]


def save_trained(source, labels):
    model = AutoModelForSequenceClassification.from_pretrained(source, labels=labels)
    save_checkpoint("best.fdl", model.state_dict())


@pytest.mark.parametrize("labels", ["good,bad", "no,yes"])
def test_labels_that_the_weights_do_not_predict_are_not_exported(source, capsys, labels):
    save_trained(source, ["bad", "good"])
    words = ["hf", "export", "source", "--weights", "best.fdl", "--out", "out"]
    assert main([*words, "--labels", labels]) == 1
    expected = f"--labels is {labels}, but the head in best.fdl predicts bad,good, in this order."
    assert expected in " ".join(capsys.readouterr().err.split())
    assert not (source.parent / "out").exists()


@pytest.mark.parametrize("options", [[], ["--labels", "bad, good"]])
def test_the_names_of_labels_come_from_the_weights(source, capsys, options):
    save_trained(source, ["bad", "good"])
    words = ["hf", "export", "source", "--weights", "best.fdl", "--out", "out", *options]
    assert main(words) == 0
    assert "has no names of labels" not in capsys.readouterr().out
    assert AutoModelForSequenceClassification.from_pretrained("out").config.labels == ("bad", "good")


def test_an_export_without_names_of_labels_says_so(source, capsys):
    save_trained(source, None)
    words = ["hf", "export", "source", "--weights", "best.fdl", "--out"]
    assert main([*words, "out"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "best.fdl has no label names, so they are LABEL_0, LABEL_1: pass --labels A,B,…" in shown
    assert main([*words, "named", "--labels", "bad,good"]) == 0
    assert "has no names of labels" not in capsys.readouterr().out


def test_a_head_and_labels_can_be_chosen(source):
    words = ["hf", "export", "source", "--head", "tokcls", "--labels", "O,B,I", "--out", "out"]
    assert main([*words, "--new-head"]) == 0
    assert AutoModelForTokenClassification.from_pretrained("out").config.labels == ("O", "B", "I")


@pytest.mark.parametrize(
    ("options", "head"), [(["--labels", "a,b,c"], "seqcls for 3 labels"), (["--head", "qa"], "qa")]
)
def test_a_head_that_the_weights_do_not_have_is_not_exported(source, capsys, options, head):
    assert main(["hf", "export", "source", "--out", "out", *options]) == 1
    assert f"source has no weights for the head {head}, so " in capsys.readouterr().err
    assert not (source.parent / "out").exists()


def test_an_encoder_is_exported_without_its_head(source):
    assert main(["hf", "export", "source", "--head", "base", "--out", "out"]) == 0


def test_a_damaged_export_is_named(source, capsys):
    content = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(content[:-1])
    assert main(["hf", "verify-export", "source"]) == 1
    assert "model.safetensors is not a valid safetensors file" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("head", ["auto", "mlm"])
def test_parity_compares_outputs_and_gradients(source, head, capsys):
    pytest.importorskip("transformers")
    assert main(["hf", "parity", "source", "--head", head]) == 0
    shown = capsys.readouterr().out
    assert "logits: " in shown
    assert "gradient" in shown


def test_a_file_of_torch_save_is_converted(source, capsys):
    tensors = load_file(source / "model.safetensors")
    torch.save(tensors, source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    assert main(["hf", "convert", "source", "--out", "out"]) == 0
    written = load_file("out/model.safetensors")
    assert written.keys() == tensors.keys()
    assert all(torch.equal(written[key], tensors[key]) for key in tensors)


def test_a_model_that_does_not_exist_is_one_line(source, capsys):
    assert main(["hf", "export", "./nothing", "--out", "out"]) == 1
    assert capsys.readouterr().err.startswith("error: the folder ./nothing does not exist.")
