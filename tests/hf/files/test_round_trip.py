"""Every cell: a folder of transformers is loaded, exported and loaded again, every tensor byte-equal."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from flodl.hf import verify_export
from flodl.hf.auto import AUTO
from flodl.hf.heads import Head
from flodl.hf.parity import SMALL

from ..families.test_parity import CELLS, OPTIONS
from ..reference import batch, reference_model, transformers

CASES = [pytest.param(*cell, marks=[] if cell[0] == "bert" else [pytest.mark.slow]) for cell in CELLS]


def save(folder, family, head, **options):
    """Write a small model of transformers to a folder and return it."""
    labels = {"num_labels": 2 if head is Head.QUESTION_ANSWERING else 3}
    config = transformers.AutoConfig.for_model(family, **{**SMALL, **labels, **OPTIONS[family][0], **options})
    model = reference_model(config, head).eval()
    model.save_pretrained(folder)
    return model


def same_bytes(first, second):
    return first.dtype == second.dtype and first.numpy().tobytes() == second.numpy().tobytes()


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize(("family", "head"), CASES)
def test_an_export_equals_its_source(family, head, is_tied, tmp_path):
    head = Head(head)
    if not is_tied and head is not Head.MASKED_LM:
        return  # only masked LM has weights that can be tied
    save(tmp_path / "source", family, head, tie_word_embeddings=is_tied)
    model = AUTO[head].from_pretrained(tmp_path / "source")
    assert model.load_report.is_complete
    assert not model.load_report.dropped
    model.export(tmp_path / "export")
    source = load_file(tmp_path / "source/model.safetensors")
    written = load_file(tmp_path / "export/model.safetensors")
    assert written.keys() == source.keys()
    assert all(same_bytes(written[key], source[key]) for key in source)
    with safe_open(tmp_path / "export/model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("source", "export")]
    assert configs[0] == configs[1]
    assert len(verify_export(tmp_path / "export", source=tmp_path / "source").checks) >= 5


@pytest.mark.parametrize(("family", "head"), CASES)
def test_after_a_training_step_the_export_has_the_new_weights(family, head, tmp_path):
    head = Head(head)
    save(tmp_path / "source", family, head)
    model = AUTO[head].from_pretrained(tmp_path / "source").train()
    inputs = batch(pad=model.config.pad_token_id or 0, token_types=model.config.sizes.token_types)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    output = model(**inputs)
    sum(
        value.float().sin().sum() for value in (output if isinstance(output, tuple) else (output,))
    ).backward()
    optimizer.step()
    model.export(tmp_path / "export")
    written = load_file(tmp_path / "export/model.safetensors")
    source = load_file(tmp_path / "source/model.safetensors")
    assert written.keys() == source.keys()
    assert any(not torch.equal(written[key], source[key]) for key in source)
    again = AUTO[head].from_pretrained(tmp_path / "export").state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(again[name], value), name
    verify_export(tmp_path / "export")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types_are_kept(dtype, tmp_path):
    model = save(tmp_path / "source", "bert", Head.SEQUENCE_CLASSIFICATION).to(dtype)
    model.save_pretrained(tmp_path / "source")
    loaded = AUTO[model_head()].from_pretrained(tmp_path / "source")
    assert loaded.dtype == dtype
    loaded.export(tmp_path / "export")
    wide = AUTO[model_head()].from_pretrained(tmp_path / "source", dtype="float64")
    wide.export(tmp_path / "wide")
    source = load_file(tmp_path / "source/model.safetensors")
    for folder in ("export", "wide"):
        written = load_file(tmp_path / folder / "model.safetensors")
        assert all(written[key].dtype == dtype and torch.equal(written[key], source[key]) for key in source)


def model_head():
    return Head.SEQUENCE_CLASSIFICATION


def test_a_model_trained_in_a_wider_type_keeps_that_type_and_says_so(tmp_path):
    save(tmp_path / "source", "bert", model_head()).half().save_pretrained(tmp_path / "source")
    model = AUTO[model_head()].from_pretrained(tmp_path / "source", dtype=torch.float32)
    with torch.no_grad():
        model.graph.get_parameter("classifier.bias").add_(1e-7)
    report = model.export(tmp_path / "export")
    assert "classifier.bias no longer fits the float16 of the source" in str(report)
    written = load_file(tmp_path / "export/model.safetensors")
    assert {tensor.dtype for tensor in written.values()} == {torch.float32}
    assert json.loads((tmp_path / "export/config.json").read_text())["dtype"] == "float32"


def test_a_narrower_model_is_exported_as_it_is(tmp_path):
    save(tmp_path / "source", "bert", model_head())
    AUTO[model_head()].from_pretrained(tmp_path / "source", dtype="bfloat16").export(tmp_path / "export")
    written = load_file(tmp_path / "export/model.safetensors")
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}


def test_shards_and_their_index_are_kept(tmp_path):
    model = save(tmp_path / "source", "bert", Head.MASKED_LM)
    (tmp_path / "source/model.safetensors").unlink()
    model.save_pretrained(tmp_path / "source", max_shard_size="20KB")
    index = json.loads((tmp_path / "source/model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    AUTO[Head.MASKED_LM].from_pretrained(tmp_path / "source").export(tmp_path / "export")
    written = json.loads((tmp_path / "export/model.safetensors.index.json").read_text())
    assert written == index
    for name in set(index["weight_map"].values()):
        first, second = (load_file(tmp_path / folder / name) for folder in ("source", "export"))
        assert first.keys() == second.keys()
        assert all(same_bytes(first[key], second[key]) for key in first)
    verify_export(tmp_path / "export", source=tmp_path / "source")


def test_an_export_can_be_split_into_shards(tmp_path):
    save(tmp_path / "source", "bert", Head.BASE)
    model = AUTO[Head.BASE].from_pretrained(tmp_path / "source")
    report = model.export(tmp_path / "export", max_shard_bytes=20_000)
    assert "model-00001-of-00005.safetensors" in report.files
    verify_export(tmp_path / "export", source=tmp_path / "source")


def test_old_spellings_and_redundant_tensors_are_canonical_after_the_export(tmp_path):
    from safetensors.torch import save_file

    save(tmp_path / "source", "bert", Head.MASKED_LM)
    path = tmp_path / "source/model.safetensors"
    tensors = load_file(path)
    old = {key.replace("LayerNorm.weight", "LayerNorm.gamma"): value for key, value in tensors.items()}
    old["bert.embeddings.position_ids"] = torch.arange(40)[None]
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    save_file(old, path)
    model = AUTO[Head.MASKED_LM].from_pretrained(tmp_path / "source")
    assert set(model.load_report.dropped) == {
        "bert.embeddings.position_ids",
        "cls.predictions.decoder.weight",
    }
    model.export(tmp_path / "export")
    written = load_file(tmp_path / "export/model.safetensors")
    assert written.keys() == tensors.keys()
    assert all(same_bytes(written[key], tensors[key]) for key in tensors)
    report = verify_export(tmp_path / "export", source=tmp_path / "source")
    assert "bert.embeddings.position_ids" in report.dropped


def test_tied_weights_that_differ_are_loaded_separately_as_in_transformers(tmp_path, capsys):
    from safetensors.torch import save_file

    save(tmp_path / "source", "bert", Head.MASKED_LM)
    path = tmp_path / "source/model.safetensors"
    tensors = load_file(path)
    tensors["cls.predictions.decoder.weight"] = torch.randn_like(
        tensors["bert.embeddings.word_embeddings.weight"]
    )
    save_file(tensors, path, metadata={"format": "pt"})
    model = AUTO[Head.MASKED_LM].from_pretrained(tmp_path / "source")
    assert "differ, so they are not tied" in capsys.readouterr().out
    reference = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "source").eval()
    inputs = batch()
    expected = reference(**inputs).logits
    assert torch.allclose(model(**inputs), expected, atol=1e-4)
    model.export(tmp_path / "export")
    verify_export(tmp_path / "export")
    assert json.loads((tmp_path / "export/config.json").read_text())["tie_word_embeddings"] is False
