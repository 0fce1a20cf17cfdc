"""Files of torch.save: read, never executed."""

import ast
import gzip
import io
import os
import pickle
import re
import warnings
import zipfile
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

import flodl
from flodl import FlowBuilder
from flodl.checkpoint import checkpoint_keys, load_checkpoint, read_checkpoint
from flodl.core import CheckpointError, DamagedError


def build():
    return FlowBuilder(nn.Linear(2, 3)).tag("body").through(nn.Linear(3, 1)).tag("head").build()


def test_a_state_dict_is_loaded_from_a_path_and_from_a_stream(tmp_path):
    model = build()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for source in (tmp_path / "model.pt", io.BytesIO((tmp_path / "model.pt").read_bytes())):
        other = build()
        assert other.load_checkpoint(source).is_complete
        assert torch.equal(other.body.weight, model.body.weight)


def test_a_nested_state_dict_is_found_by_its_prefix(tmp_path):
    model = build()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    content = {"epoch": 3, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(content, tmp_path / "run.pt")
    assert checkpoint_keys(tmp_path / "run.pt")[:2] == ["model.body.weight", "model.body.bias"]
    with pytest.raises(CheckpointError, match=r"has all of them under 'model'\. .* Pass prefix='model'"):
        build().load_checkpoint(tmp_path / "run.pt")
    assert build().load_checkpoint(tmp_path / "run.pt", prefix="model").is_complete


class Attack:
    def __reduce__(self):
        return os.mkdir, ("hacked",)


@pytest.mark.parametrize("old_form", [False, True])
def test_code_in_a_file_is_never_executed(tmp_path, monkeypatch, old_form):
    monkeypatch.chdir(tmp_path)
    torch.save({"w": Attack()}, "bad.pt", _use_new_zipfile_serialization=not old_form)
    Path("bad.pickle").write_bytes(pickle.dumps(Attack()))
    for name in ("bad.pt", "bad.pickle"):
        with pytest.raises(CheckpointError) as caught:
            read_checkpoint(name)
        assert "weights_only=False" not in str(caught.value)
    assert not Path("hacked").exists()


def test_a_system_call_in_a_file_is_reported_as_a_possible_attack(tmp_path):
    torch.save({"w": Attack()}, tmp_path / "bad.pt")
    with pytest.raises(CheckpointError, match=r"bad.pt' calls 'posix.mkdir', which no model needs"):
        read_checkpoint(tmp_path / "bad.pt")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 1)


def converted_by(message, folder):
    """Run the line of Python in an error message, and return the file it writes."""
    (line,) = re.findall(r"(torch\.save\(.*, )'weights\.pt'\)", message)
    path = folder / "weights.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about TorchScript
        exec(f"{line}{str(path)!r})", {"torch": torch})
    return path


@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(2, 1)), Net()])
def test_a_pickled_model_raises_with_a_conversion_that_works(tmp_path, monkeypatch, model):
    torch.save(model, tmp_path / "model.pt")
    name = f"{type(model).__module__}.{type(model).__qualname__}"
    for source in (tmp_path / "model.pt", io.BytesIO((tmp_path / "model.pt").read_bytes())):
        with pytest.raises(CheckpointError, match=f"contains a whole object of {name}, not a dict") as caught:
            read_checkpoint(source)
        assert not isinstance(caught.value, DamagedError)
        assert "executes code that the file names" in str(caught.value)
    monkeypatch.chdir(tmp_path)  # where the 'model.pt' of the stream's message is, too
    tensors, _ = read_checkpoint(converted_by(str(caught.value), tmp_path))
    assert tensors.keys() == model.state_dict().keys()


def test_an_object_in_addition_to_tensors_raises_with_a_conversion(tmp_path):
    torch.save({"best": numpy.float64(0.5), "model": build().state_dict()}, tmp_path / "run.pt")
    with pytest.raises(
        CheckpointError, match=r"run.pt' contains an object of numpy\.\S*scalar in addition to"
    ) as caught:
        read_checkpoint(tmp_path / "run.pt")
    assert build().load_checkpoint(converted_by(str(caught.value), tmp_path)).is_complete


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_torchscript_file_raises_with_a_conversion(tmp_path):
    torch.jit.script(nn.Linear(2, 1)).save(tmp_path / "script.pt")
    with pytest.raises(CheckpointError, match="is a TorchScript program, not a dict") as caught:
        read_checkpoint(tmp_path / "script.pt")
    assert checkpoint_keys(converted_by(str(caught.value), tmp_path)) == ["weight", "bias"]


def test_a_legacy_file_raises_with_a_conversion(tmp_path):
    torch.save(build().state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match=r"is in the format used before torch 1\.6") as caught:
        read_checkpoint(tmp_path / "old.pt")
    assert build().load_checkpoint(converted_by(str(caught.value), tmp_path)).is_complete


def test_other_files_raise(tmp_path):
    torch.save([torch.zeros(2)], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match=r"list.pt' contains a list, not a dict .*state_dict\(\)"):
        read_checkpoint(tmp_path / "list.pt")
    (tmp_path / "list.pt.gz").write_bytes(gzip.compress((tmp_path / "list.pt").read_bytes()))
    with pytest.raises(CheckpointError, match=r"is a compressed file of torch\.save\. Decompress it first"):
        read_checkpoint(tmp_path / "list.pt.gz")
    (tmp_path / "list.pickle").write_bytes(pickle.dumps([1, 2], protocol=4))
    with pytest.raises(DamagedError, match=r"list\.pickle' is not a complete checkpoint: it is a pickle"):
        read_checkpoint(tmp_path / "list.pickle")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "list.pt").read_bytes()[:-40])
    with pytest.raises(DamagedError, match="torch cannot read it safely"):
        read_checkpoint(tmp_path / "cut.pt")


def unusual_tensors():
    """Return tensors that torch.save can store and a model cannot load, and how the error describes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantized and nested tensors are not stable
        return {
            "sparse_coo": torch.eye(2).to_sparse(),
            "sparse_csr": torch.eye(2).to_sparse_csr(),
            "quantized": torch.quantize_per_tensor(torch.eye(2), 0.1, 0, torch.quint8),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(2)]),
            "on the meta device": torch.eye(2, device="meta"),
        }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", unusual_tensors())
def test_an_unusual_tensor_raises_before_any_tensor_changes(tmp_path, kind):
    torch.save({"a": torch.ones(2, 2), "b": unusual_tensors()[kind], "c": torch.ones(2)}, tmp_path / "m.pt")
    target = {"a": torch.zeros(2, 2), "b": torch.zeros(2, 2), "c": torch.zeros(2)}
    for source in (tmp_path / "m.pt", io.BytesIO((tmp_path / "m.pt").read_bytes())):
        with pytest.raises(CheckpointError, match=f"at 'b': .* has a tensor .*{kind}.* Nothing was loaded"):
            load_checkpoint(source, target)
    assert not any(tensor.any() for tensor in target.values())
    del target["b"]
    assert load_checkpoint(tmp_path / "m.pt", target, allow_unexpected=["b"]).loaded == ("a", "c")


@pytest.mark.parametrize("dtype", [torch.bits8, torch.bits16, torch.float4_e2m1fn_x2])
def test_a_type_that_torch_cannot_copy_raises_before_any_tensor_changes(tmp_path, dtype):
    odd = torch.zeros(2 * dtype.itemsize, dtype=torch.uint8).view(dtype)
    torch.save({"a": torch.ones(2), "b": odd}, tmp_path / "m.pt")
    target = {"a": torch.zeros(2), "b": torch.zeros(2)}
    with pytest.raises(CheckpointError, match="Nothing was loaded"):
        load_checkpoint(tmp_path / "m.pt", target)
    assert not target["a"].any()


def rezipped(path, compression):
    with zipfile.ZipFile(path) as old:
        members = [(member.filename, old.read(member)) for member in old.infolist()]
    with zipfile.ZipFile(path, "w", compression) as new:
        for name, data in members:
            new.writestr(name, data)


def test_a_file_that_was_zipped_again_is_read_although_it_is_misaligned(tmp_path):
    tensors = {"w": torch.tensor([1 + 2j], dtype=torch.complex128), "b": torch.tensor([True])}
    torch.save(tensors, tmp_path / "m.pt")
    rezipped(tmp_path / "m.pt", zipfile.ZIP_STORED)
    back, _ = read_checkpoint(tmp_path / "m.pt")
    assert torch.equal(back["w"], tensors["w"])
    assert back["w"].data_ptr() % 16 == 0


def test_views_in_a_file_that_was_zipped_again_keep_their_values(tmp_path):
    whole = torch.arange(12.0).to(torch.complex128).reshape(3, 4)
    tensors = {
        "whole": whole,
        "column": whole[:, 1],
        "transposed": whole.t(),
        "tail": whole[1:],
        "none": whole[:0],
    }
    torch.save(tensors, tmp_path / "m.pt")
    rezipped(tmp_path / "m.pt", zipfile.ZIP_STORED)
    back, _ = read_checkpoint(tmp_path / "m.pt")
    assert {name: value.tolist() for name, value in back.items()} == {
        name: value.tolist() for name, value in tensors.items()
    }


def test_a_file_that_was_compressed_inside_raises(tmp_path):
    """torch would return the compressed bytes as values."""
    torch.save({"w": torch.ones(1000)}, tmp_path / "m.pt")
    rezipped(tmp_path / "m.pt", zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="is a compressed archive, not one that torch"):
        read_checkpoint(tmp_path / "m.pt")


def test_changing_a_mapped_tensor_does_not_change_the_file(tmp_path):
    torch.save({"w": torch.zeros(2)}, tmp_path / "w.pt")
    read_checkpoint(tmp_path / "w.pt")[0]["w"] += 1
    target = {"w": torch.ones(2)}
    load_checkpoint(tmp_path / "w.pt", target)
    assert not target["w"].any()


# They exchange messages with processes of the same run, which flodl itself has started.
BETWEEN_RANKS = {
    "distributed/ranks/channel.py",
    "distributed/ranks/main.py",
    "distributed/supervisor/answers.py",
    "train/ranks/fit.py",
    "train/ranks/payload.py",
    "train/ranks/worker.py",
}


@pytest.mark.slow
def test_nothing_in_the_package_unpickles():
    source = Path(flodl.__file__).parent
    for path in source.rglob("*.py"):
        if path.relative_to(source).as_posix() in BETWEEN_RANKS:
            continue
        text = path.read_text(encoding="utf-8")
        if path.relative_to(source).as_posix() == "data/worker_errors.py":
            # What a process that the loader itself has started sends through torch's queue, which pickles it.
            text = text.replace("pickle.loads(sent)", "None")
        if path.relative_to(source).as_posix() == "engine/compile/worker.py":
            # The pipe to a child process that flodl itself has just started.
            text = text.replace("pickle.loads(sys.stdin.buffer.read())", "")
        assert not re.search(r"\b(pickle|dill|joblib|cloudpickle|shelve|marshal)\.loads?\b", text), path
        assert not re.search(r"from (pickle|dill|joblib|cloudpickle|shelve|marshal) import", text), path
        assert not re.search(r"(?<!Weights)Unpickler|allow_pickle=True", text), path
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            if ast.unparse(call.func) == "torch.load":
                assert "weights_only=True" in ast.unparse(call), path
        assert not re.search(r"from torch import .*\bload\b|torch\.serialization", text), path
