"""The safetensors format: readable by others, and damage is detected."""

import io
import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from flodl import load_checkpoint, save_checkpoint
from flodl.checkpoint import read_checkpoint
from flodl.core import CheckpointError

from ..tensors import TENSORS, TIED, equal, stored


def test_the_file_is_a_safetensors_file_that_others_can_read(tmp_path):
    save_checkpoint(tmp_path / "m.fdl", {"a": TIED}, metadata={"epoch": "3"})
    assert torch.equal(load_file(tmp_path / "m.fdl")["a"], TIED)
    _, metadata = read_checkpoint(tmp_path / "m.fdl")
    assert (metadata["epoch"], metadata["flodl_format"]) == ("3", "1")


def test_a_file_truncated_anywhere_raises():
    data = stored({"a": torch.ones(3), "b": torch.ones(2)})
    target = {"a": torch.zeros(3), "b": torch.zeros(2)}
    for length in range(1, len(data)):
        with pytest.raises(
            CheckpointError, match=r"is not a complete checkpoint: .* Use an earlier checkpoint"
        ):
            load_checkpoint(io.BytesIO(data[:length]), target)
    assert not any(tensor.any() for tensor in target.values())
    load_checkpoint(io.BytesIO(data), target)
    assert all(tensor.all() for tensor in target.values())


def with_header(header: object, body: bytes = b"", *, claims: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if claims is None else claims) + text + body


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


LIES = {
    "a huge header": with_header({"a": ENTRY}, bytes(8), claims=2**63),
    "no JSON": with_header(b"not json", bytes(8)),
    "broken UTF-8": with_header(b"\xff\xfe{}", bytes(8)),
    "a list": with_header([1, 2]),
    "a number": with_header(7),
    "nested too deep": with_header(b"[" * 100_000),
    "too few bytes": with_header({"a": ENTRY}, bytes(4)),
    "too many bytes": with_header({"a": ENTRY}, bytes(12)),
    "another shape": with_header({"a": {**ENTRY, "shape": [3]}}, bytes(8)),
    "a negative shape": with_header({"a": {**ENTRY, "shape": [-2]}}, bytes(8)),
    "an unknown dtype": with_header({"a": {**ENTRY, "dtype": "Q9"}}, bytes(8)),
    "offsets beyond the end": with_header({"a": {**ENTRY, "data_offsets": [8, 16]}}, bytes(8)),
    "metadata of another kind": with_header({"__metadata__": [], "a": ENTRY}, bytes(8)),
    "aliases of nothing": with_header(
        {"__metadata__": {"flodl_aliases": '{"b": "nothing"}'}, "a": ENTRY}, bytes(8)
    ),
    "aliases of another kind": with_header({"__metadata__": {"flodl_aliases": "[1]"}, "a": ENTRY}, bytes(8)),
    "aliases that are no JSON": with_header({"__metadata__": {"flodl_aliases": "{"}, "a": ENTRY}, bytes(8)),
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(64),
    "a pickle": b"\x80\x04\x95" + bytes(64),
    "few bytes": b"hi",
}


@pytest.mark.parametrize("data", LIES.values(), ids=LIES.keys())
def test_an_inconsistent_file_raises(data, tmp_path):
    (tmp_path / "lies.fdl").write_bytes(data)
    for source in (tmp_path / "lies.fdl", io.BytesIO(data)):
        with pytest.raises(CheckpointError, match="is not a complete checkpoint"):
            load_checkpoint(source, {"a": torch.zeros(2)})


def test_files_of_the_safetensors_library_are_read(tmp_path):
    tensors = {name: tensor.contiguous() for name, tensor in TENSORS.items() if "tied" not in name}
    save_file(tensors, tmp_path / "theirs.safetensors", {"epoch": "3"})
    back, metadata = read_checkpoint(tmp_path / "theirs.safetensors")
    assert equal(back, dict(sorted(tensors.items(), key=lambda item: list(back).index(item[0]))))
    assert metadata == {"epoch": "3"}


@pytest.mark.parametrize("number", range(4))
def test_a_complex128_tensor_next_to_bools_is_aligned_and_loads(tmp_path, number):
    tensors = {f"flag{index}": torch.tensor([True]) for index in range(number)}
    tensors["w"] = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex128)
    save_checkpoint(tmp_path / "m.fdl", tensors)
    back, _ = read_checkpoint(tmp_path / "m.fdl")
    assert torch.equal(back["w"], tensors["w"])
    data = (tmp_path / "m.fdl").read_bytes()
    assert data.index(bytes(back["w"].view(torch.uint8).numpy())) % 16 == 0
    assert load_file(tmp_path / "m.fdl")["w"].shape == (2, 16)


def test_an_old_file_with_a_misaligned_complex128_tensor_loads(tmp_path):
    value = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex128)
    header = {
        "__metadata__": {"flodl_dtypes": '{"w": "complex128"}'},
        "flag": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]},
        "w": {"dtype": "U8", "shape": [2, 16], "data_offsets": [1, 33]},
    }
    data = with_header(header, b"\1" + value.view(torch.uint8).numpy().tobytes())
    (tmp_path / "old.fdl").write_bytes(data)
    for source in (tmp_path / "old.fdl", io.BytesIO(data)):
        target = {"w": torch.zeros_like(value), "flag": torch.tensor([False])}
        assert load_checkpoint(source, target).is_complete
        assert torch.equal(target["w"], value)


def test_a_file_whose_names_of_format_and_checksum_are_damaged_is_rejected(tmp_path):
    path = tmp_path / "model.fdl"
    save_checkpoint(path, {"w": torch.ones(2)})
    content = path.read_bytes().replace(b"flodl_checksum", b"flodl_che?ksum")
    path.write_bytes(content.replace(b"flodl_format", b"flodl_for?at"))
    target = {"w": torch.zeros(2)}
    with pytest.raises(CheckpointError, match="checksum"):
        load_checkpoint(path, target)
    assert not target["w"].any()


@pytest.mark.parametrize("dtype", ["float64", "complex64", "quint8", "uint4", "bits16", "nothing", "nn"])
def test_a_forged_type_raises_before_any_tensor_changes(dtype):
    header = {
        "__metadata__": {"flodl_dtypes": json.dumps({"w": dtype})},
        "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "w": {"dtype": "U8", "shape": [2, 16], "data_offsets": [4, 36]},
    }
    target = {"a": torch.zeros(1), "w": torch.zeros(2, dtype=torch.complex128)}
    with pytest.raises(CheckpointError, match=r"the type '|cannot have the type"):
        load_checkpoint(io.BytesIO(with_header(header, b"\1" * 36)), target)
    assert not target["a"].any()
    assert not target["w"].any()


@pytest.mark.parametrize("bits", [1, 4, 7])
def test_a_type_that_torch_cannot_copy_is_not_saved(bits):
    tensor = torch.zeros(2, dtype=torch.uint8).view(getattr(torch, f"uint{bits}"))
    with pytest.raises(CheckpointError, match=r"torch cannot copy tensors of torch\.uint"):
        save_checkpoint(io.BytesIO(), {"w": tensor})


def test_a_name_that_is_not_unicode_raises():
    for names, metadata in (({"w\ud800": torch.ones(1)}, {}), ({"w": torch.ones(1)}, {"note": "\ud800"})):
        with pytest.raises(CheckpointError, match="not valid Unicode"):
            save_checkpoint(io.BytesIO(), names, metadata=metadata)
