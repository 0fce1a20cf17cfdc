"""Mutated files: either a flodl error or the original values; never other values, never a crash."""

import contextlib
import io
import json
import struct
import tracemalloc

import pytest
import torch

from flodl.checkpoint import latest_bundle, read_bundle, read_checkpoint, save_bundle
from flodl.core import CheckpointError, DamagedError

from .mutations import TENSORS, fate, mutated, originals, same_tensors


def test_ten_thousand_mutated_files_raise():
    """A mutation without effect (a space in the header, the name in a gzip file) may be read."""
    kinds = {kind: data for kind, data in originals().items() if kind in ("safetensors", "gz", "zst")}
    fates = [fate(data) for _, data in mutated(kinds, 10_000, seed=0)]
    assert "changed" not in fates
    assert fates.count("refused") > 9_700


def test_mutated_files_of_other_programs_raise_or_are_read():
    """Their formats have no checksum: a changed value is not detected, a changed structure is."""
    kinds = {kind: data for kind, data in originals().items() if kind in ("fdlc", "torch")}
    fates = [fate(data) for _, data in mutated(kinds, 1_000, seed=0)]
    assert fates.count("refused") > 400


def test_mutated_files_on_disk_raise(tmp_path):
    kinds = {"safetensors": originals()["safetensors"]}
    for _, data in mutated(kinds, 300, seed=1):
        (tmp_path / "model.fdl").write_bytes(data)
        with contextlib.suppress(CheckpointError):
            assert same_tensors(read_checkpoint(tmp_path / "model.fdl")[0], TENSORS)


def test_mutated_bundles_are_skipped(tmp_path, capsys):
    state = {"model": dict(TENSORS), "data": {"position": 7}}
    save_bundle(tmp_path, 1, state)
    path = save_bundle(tmp_path, 2, state)
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    for number, (name, data) in enumerate(mutated(files, 150, seed=2)):
        if data == files[name]:
            continue
        (path / name).write_bytes(data)
        bundle, _ = latest_bundle(tmp_path)
        # Extra whitespace or a longer number does not change a manifest.
        assert bundle.step == 1 or name == "manifest.json", (number, name)
        assert same_tensors(read_bundle(bundle)["model"], TENSORS)
        (path / name).write_bytes(files[name])
    capsys.readouterr()


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "claims"),
    [
        ({"a": {**ENTRY, "shape": [2**40], "data_offsets": [0, 2**42]}}, None),
        ({"a": {**ENTRY, "shape": [2**62, 2**62], "data_offsets": [0, 2**62]}}, None),
        ({"a": {**ENTRY, "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}, None),
        ({"a": {**ENTRY, "shape": [1] * 5000 + [2]}}, None),
        ({"a": ENTRY}, 2**40),
        ({"a": ENTRY}, 99_000_000),
    ],
)
def test_a_header_with_a_false_size_allocates_nothing(header, claims):
    text = json.dumps(header).encode()
    data = struct.pack("<Q", claims or len(text)) + text + bytes(8)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError):
            read_checkpoint(io.BytesIO(data))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_the_original_files_are_valid():
    assert fate(originals()["safetensors"]) == "the same"
    assert torch.equal(read_checkpoint(io.BytesIO(originals()["fdlc"]))[0]["count"], torch.tensor(3))
