"""The file format of the Rust floDl, byte by byte."""

import io
import struct
import tracemalloc

import pytest
import torch
from torch import nn

from flodl import FlowBuilder
from flodl.checkpoint import checkpoint_keys, read_checkpoint, save_checkpoint
from flodl.core import CheckpointError, DamagedError


def entry(name, shape, tag, data, *, size=None, dimensions=None):
    text = name.encode()
    head = struct.pack("<I", len(text)) + text
    head += struct.pack("<I", len(shape) if dimensions is None else dimensions)
    head += struct.pack(f"<{len(shape)}q", *shape)
    return head + struct.pack("<BQ", tag, len(data) if size is None else size) + data


def file(*entries, version=2, hash=bytes(32), count=None):
    count = len(entries) if count is None else count
    return b"FDLC" + struct.pack("<I", version) + hash + struct.pack("<I", count) + b"".join(entries)


ONES = struct.pack("<2f", 1, 1)
TENSORS = {
    "half": torch.ones(2, dtype=torch.float16),
    "brain": torch.ones(2, dtype=torch.bfloat16),
    "single": torch.arange(6.0).reshape(2, 3),
    "double": torch.tensor(2.0, dtype=torch.float64),
    "int": torch.tensor([1, 2], dtype=torch.int32),
    "long": torch.zeros(0, 2, dtype=torch.int64),
}


def test_the_bytes_follow_the_format():
    stream = io.BytesIO()
    save_checkpoint(stream, {"w": torch.ones(2), "n": torch.tensor(3)}, format="fdlc")
    assert stream.getvalue() == file(entry("w", [2], 3, ONES), entry("n", [], 6, struct.pack("<q", 3)))


def test_every_dtype_is_restored():
    stream = io.BytesIO()
    save_checkpoint(stream, TENSORS, format="fdlc")
    stream.seek(0)
    tensors, notes = read_checkpoint(stream)
    assert list(tensors) == list(TENSORS)
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert all(tensors[name].dtype == TENSORS[name].dtype for name in TENSORS)
    assert notes == {"flodl_layout": "fdlc"}


def test_both_versions_and_a_hash_are_read():
    tensors, notes = read_checkpoint(io.BytesIO(file(entry("w", [2], 3, ONES), version=1, hash=b"\x01" * 32)))
    assert torch.equal(tensors["w"], torch.ones(2))
    assert notes["rust_hash"] == "01" * 32


def test_a_graph_uses_the_names_of_the_rust_floDl():
    def build():
        inner = FlowBuilder(nn.Linear(2, 2)).through(nn.Linear(2, 2)).label("inner").build()
        return FlowBuilder(nn.Linear(2, 2)).tag("body").through(nn.BatchNorm1d(2)).through(inner).build()

    model, stream = build(), io.BytesIO()
    model.save_checkpoint(stream, format="fdlc")
    names = checkpoint_keys(io.BytesIO(stream.getvalue()))
    assert names[:4] == ["body/weight", "body/bias", "batchnorm1d_1/weight", "batchnorm1d_1/bias"]
    assert names[4:8] == ["inner/weight_0", "inner/bias_0", "inner/weight_1", "inner/bias_1"]
    assert names[8:] == [
        "batchnorm1d_1/running_mean", "batchnorm1d_1/running_var", "batchnorm1d_1/num_batches_tracked",
    ]  # fmt: skip
    other = build()
    stream.seek(0)
    assert other.load_checkpoint(stream).is_complete
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values()))


def test_tied_weights_of_a_graph_are_written_once_and_both_loaded():
    shared = nn.Linear(2, 2)
    model = FlowBuilder(shared).tag("a").through(nn.ReLU()).through(shared).tag("b").build()
    stream = io.BytesIO()
    model.save_checkpoint(stream, format="fdlc")
    assert checkpoint_keys(io.BytesIO(stream.getvalue())) == ["a/weight", "a/bias"]
    stream.seek(0)
    assert model.load_checkpoint(stream).is_complete


def test_what_the_format_cannot_store_raises(tmp_path):
    with pytest.raises(CheckpointError, match=r"at 'mask': FDLC files cannot store bool, only float16, "):
        save_checkpoint(tmp_path / "m.fdl", {"mask": torch.ones(2) > 0}, format="fdlc")
    with pytest.raises(CheckpointError, match="FDLC files cannot store metadata"):
        save_checkpoint(tmp_path / "m.fdl", TENSORS, metadata={"a": "b"}, format="fdlc")
    with pytest.raises(CheckpointError, match=r"format='fdl' is not known\. Did you mean 'fdlc'"):
        save_checkpoint(tmp_path / "m.fdl", TENSORS, format="fdl")
    assert list(tmp_path.iterdir()) == []


LIES = {
    "a version to come": file(version=3),
    "version 0": file(version=0),
    "too few entries": file(entry("w", [2], 3, ONES), count=2),
    "too many entries": file(entry("w", [2], 3, ONES), count=0),
    "four billion entries": file(count=2**32 - 1),
    "a name twice": file(entry("w", [2], 3, ONES), entry("w", [2], 3, ONES)),
    "a long name": file(struct.pack("<I", 2**32 - 1)),
    "a name that is no text": file(struct.pack("<I", 1) + b"\xff" + bytes(40)),
    "an unknown type": file(entry("w", [2], 9, ONES)),
    "another size": file(entry("w", [3], 3, ONES)),
    "a huge tensor": file(entry("w", [2**40], 3, b"", size=2**42)),
    "a huge product": file(entry("w", [2**62, 2**62, 0], 3, b"")),
    "a negative shape": file(entry("w", [-2], 3, ONES)),
    "many dimensions": file(entry("w", [2], 3, ONES, dimensions=2**31)),
    "bytes after the end": file(entry("w", [2], 3, ONES)) + b"x",
}


@pytest.mark.parametrize("data", LIES.values(), ids=LIES.keys())
def test_an_inconsistent_file_raises_before_memory_is_allocated(data):
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError, match="is not a complete checkpoint"):
            read_checkpoint(io.BytesIO(data))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_file_truncated_anywhere_raises():
    data = file(entry("w", [2], 3, ONES), entry("n", [], 6, struct.pack("<q", 3)))
    for length in range(len(data)):
        with pytest.raises(DamagedError):
            read_checkpoint(io.BytesIO(data[:length]))
