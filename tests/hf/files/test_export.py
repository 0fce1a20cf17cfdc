"""Writing folders: atomic, never over something else, other files kept."""

import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from flodl.core import HFError
from flodl.hf import AutoModel, verify_export
from flodl.hf.files import tensors_file
from flodl.hf.files.convert import convert

from .test_load import CONFIG


def test_an_export_is_compared_with_the_model_itself(tmp_path):
    model = AutoModel.from_config(CONFIG)
    model.export(tmp_path / "out")
    report = verify_export(tmp_path / "out", source=model, use_transformers=False)
    assert any(re.match(r"source: \d+ tensors equal those of the model, ", line) for line in report.checks)
    with torch.no_grad():
        next(model.graph.parameters()).add_(1)
    with pytest.raises(HFError, match=r"differs from .* of the source\. The model was trained"):
        verify_export(tmp_path / "out", source=model, use_transformers=False)


@pytest.fixture
def model():
    return AutoModel.from_config(CONFIG)


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_that_is_not_empty_is_replaced_only_with_force(model, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    model.export(folder)  # empty
    (folder / "README.md").write_text("mine")
    (folder / "pytorch_model.bin").write_text("old")
    (folder / "notes").mkdir()
    (folder / "notes/one.txt").write_text("kept")
    with pytest.raises(HFError, match=r"already exists and is not empty.*force=True"):
        model.export(folder)
    model.export(folder, force=True)
    assert listing(folder) == ["README.md", "config.json", "model.safetensors", "notes"]
    assert (folder / "notes/one.txt").read_text() == "kept"
    assert listing(tmp_path) == ["out"]


def test_a_failed_export_leaves_everything_as_it_was(model, tmp_path, monkeypatch):
    model.export(tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def fail(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("flodl.hf.files.export.shutil.copyfile", fail)
    monkeypatch.setattr("flodl.hf.files.export.json.dumps", fail)
    with pytest.raises(HFError, match=r"out cannot be written: No space left on device"):
        model.export(tmp_path / "out", force=True)
    with pytest.raises(HFError, match=r"new cannot be written"):
        model.export(tmp_path / "new")
    assert listing(tmp_path) == ["out"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_model_can_replace_its_own_source(model, tmp_path):
    model.export(tmp_path / "out")
    (tmp_path / "out/vocab.txt").write_text("[PAD]")
    again = AutoModel.from_pretrained(tmp_path / "out")
    again.export(tmp_path / "out", force=True)
    assert listing(tmp_path / "out") == ["config.json", "model.safetensors", "vocab.txt"]


def test_a_file_in_place_of_the_folder_is_not_touched(model, tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(HFError, match=r"out is a file"):
        model.export(tmp_path / "out", force=True)


def test_an_empty_path_is_not_the_working_directory(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HFError, match=r"the folder to write is ''\. Pass a path"):
        model.export("", force=True)
    assert listing(tmp_path) == []


def test_verification_finds_a_changed_tensor(model, tmp_path):
    model.export(tmp_path / "a")
    AutoModel.from_config(CONFIG, seed=9).export(tmp_path / "b")
    with pytest.raises(
        HFError, match=r"'embeddings\.\w+\.weight' differs from 'embeddings\.\w+\.weight' of the source"
    ):
        verify_export(tmp_path / "a", source=tmp_path / "b", use_transformers=False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_an_export_in_another_dtype_is_compared_with_the_source_in_that_dtype(model, tmp_path, dtype):
    model.export(tmp_path / "source")
    model.export(tmp_path / "a", dtype=dtype)
    report = verify_export(tmp_path / "a", source=tmp_path / "source", use_transformers=False)
    assert re.search(rf"tensors equal those of .*source cast to {dtype}, bit for bit", str(report))
    AutoModel.from_config(CONFIG, seed=9).export(tmp_path / "other")
    with pytest.raises(HFError, match="differs from"):
        verify_export(tmp_path / "a", source=tmp_path / "other", use_transformers=False)


def test_verification_finds_a_single_changed_value_and_a_single_dtype(model, tmp_path):
    model.export(tmp_path / "source")
    model.export(tmp_path / "a", dtype="float16")
    path = tmp_path / "a/model.safetensors"
    tensors = load_file(path)
    bias = tensors["pooler.dense.bias"]
    bias[3] += 1
    save_file(tensors, path, metadata=tensors_file.METADATA)
    with pytest.raises(
        HFError, match=r"'pooler\.dense\.bias' differs from 'pooler\.dense\.bias' of the source"
    ):
        verify_export(tmp_path / "a", source=tmp_path / "source", use_transformers=False)
    bias[3] -= 1
    save_file({**tensors, "pooler.dense.bias": bias.float()}, path, metadata=tensors_file.METADATA)
    with pytest.raises(HFError, match=r"is float16 .*, but .* of the source is float32 "):
        verify_export(tmp_path / "a", source=tmp_path / "source", use_transformers=False)


def test_verification_finds_missing_and_unknown_tensors(model, tmp_path):
    model.export(tmp_path / "a")
    path = tmp_path / "a/model.safetensors"
    tensors = load_file(path)
    save_file(tensors, path)
    with pytest.raises(HFError, match=r"is not marked with the format 'pt'"):
        verify_export(tmp_path / "a")
    pooler = tensors.pop("pooler.dense.bias")
    save_file(tensors, path, metadata=tensors_file.METADATA)
    with pytest.raises(HFError, match=r"'pooler\.dense\.bias' is missing"):
        verify_export(tmp_path / "a")
    save_file(
        {**tensors, "pooler.dense.bias": pooler, "x.y": pooler.clone()}, path, metadata={"format": "pt"}
    )
    with pytest.raises(HFError, match=r"'x\.y' is unexpected"):
        verify_export(tmp_path / "a")
    with pytest.raises(HFError, match=r"the folder .*nothing does not exist"):
        verify_export(tmp_path / "nothing")


def test_conversion_keeps_every_key_also_of_tensors_that_share_memory(tmp_path):
    import torch
    from safetensors.torch import load_file

    (tmp_path / "old").mkdir()
    (tmp_path / "old/config.json").write_text('{"model_type": "anything"}')
    (tmp_path / "old/vocab.txt").write_text("[PAD]")
    shared = torch.arange(6.0).reshape(2, 3)
    tensors = {"a": shared, "b": shared, "c": shared.t(), "d": shared[1]}
    torch.save(tensors, tmp_path / "old/pytorch_model.bin")
    report = convert(tmp_path / "old", tmp_path / "new")
    assert report.files == ("config.json", "model.safetensors", "vocab.txt")
    written = load_file(tmp_path / "new/model.safetensors")
    assert written.keys() == tensors.keys()
    assert all(torch.equal(written[key], tensors[key]) for key in tensors)
