"""Compression: by suffix when writing, by content when reading."""

import gzip
import io
import sys
import tracemalloc

import pytest
import torch

from flodl.checkpoint import checkpoint_keys, load_checkpoint, read_checkpoint, save_checkpoint
from flodl.core import CheckpointError, DamagedError

TENSORS = {"a.weight": torch.randn(20, 3), "a.bias": torch.zeros(3), "n": torch.tensor(7)}


@pytest.mark.parametrize("name", ["m.fdl.bz2", "m.safetensors.xz", "m.fdl.ZIP"])
def test_a_suffix_of_an_unsupported_compression_raises(tmp_path, name):
    with pytest.raises(
        CheckpointError, match=r"a compression format that flodl does not write\. Write 'm.*gz'"
    ):
        save_checkpoint(tmp_path / name, TENSORS)
    assert not list(tmp_path.iterdir())


def test_an_uppercase_suffix_compresses_too(tmp_path):
    save_checkpoint(tmp_path / "M.FDL.GZ", TENSORS)
    assert (tmp_path / "M.FDL.GZ").read_bytes().startswith(b"\x1f\x8b")


@pytest.mark.parametrize("format", ["safetensors", "fdlc"])
@pytest.mark.parametrize(("suffix", "magic"), [(".gz", b"\x1f\x8b"), (".zst", b"\x28\xb5\x2f\xfd")])
def test_the_suffix_selects_compression_and_reading_detects_it(tmp_path, suffix, magic, format):
    if suffix == ".zst":
        pytest.importorskip("zstandard")
    path = tmp_path / f"model.fdl{suffix}"
    save_checkpoint(path, TENSORS, format=format)
    assert path.read_bytes().startswith(magic)
    renamed = path.rename(tmp_path / "no-suffix")
    for source in (renamed, io.BytesIO(renamed.read_bytes())):
        tensors, _ = read_checkpoint(source)
        assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert checkpoint_keys(renamed) == list(TENSORS)
    target = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    assert load_checkpoint(renamed, target).is_complete


def test_the_same_tensors_produce_the_same_bytes(tmp_path):
    for name in ("one.fdl.gz", "two.fdl.gz", "one.fdl", "two.fdl"):
        save_checkpoint(tmp_path / name, TENSORS)
    assert (tmp_path / "one.fdl").read_bytes() == (tmp_path / "two.fdl").read_bytes()
    assert gzip.decompress((tmp_path / "one.fdl.gz").read_bytes()) == (tmp_path / "one.fdl").read_bytes()


@pytest.mark.parametrize("size", [3, 200_000])
@pytest.mark.parametrize("format", ["safetensors", "fdlc"])
@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_compressed_file_with_missing_or_extra_bytes_raises(tmp_path, suffix, format, size):
    if suffix == ".zst":
        pytest.importorskip("zstandard")
    path = tmp_path / f"model.fdl{suffix}"
    save_checkpoint(path, {"w": torch.arange(float(size)), "b": torch.zeros(size)}, format=format)
    whole = path.read_bytes()
    assert read_checkpoint(io.BytesIO(whole))[0]["w"].shape == (size,)
    for missing in (1, 2, 3, 4, 5, 7, 12, len(whole) // 2):
        with pytest.raises(DamagedError):
            read_checkpoint(io.BytesIO(whole[:-missing]))
    for added in (b"x", b"abc", b"abcd" * 9):
        with pytest.raises(DamagedError):
            read_checkpoint(io.BytesIO(whole + added))


@pytest.mark.parametrize("settings", [{"write_checksum": False}, {"level": 19}, {"write_content_size": True}])
def test_frames_of_other_zstd_writers_are_parsed(settings):
    zstandard = pytest.importorskip("zstandard")
    stream = io.BytesIO()
    save_checkpoint(stream, {"w": torch.arange(300_000) % 7, "z": torch.zeros(300_000)})
    plain, compressor = stream.getvalue(), zstandard.ZstdCompressor(**settings)
    for whole in (
        compressor.compress(plain),
        compressor.compress(plain[:999]) + compressor.compress(plain[999:]),
    ):
        assert read_checkpoint(io.BytesIO(whole))[0]["w"][8] == 1
        for missing in (1, 2, 3, 4):
            with pytest.raises(DamagedError, match="it ends inside a compressed frame"):
                read_checkpoint(io.BytesIO(whole[:-missing]))


def test_without_zstandard_the_message_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(CheckpointError, match=r"'zstandard', which is not installed\. Run pip install"):
        save_checkpoint(tmp_path / "model.fdl.zst", TENSORS)
    assert list(tmp_path.iterdir()) == []


def test_a_decompression_bomb_is_read_no_further_than_its_header(tmp_path):
    save_checkpoint(tmp_path / "model.fdl", TENSORS)
    bomb = gzip.compress((tmp_path / "model.fdl").read_bytes() + bytes(200_000_000), 1)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError, match="extra bytes at its end"):
            read_checkpoint(io.BytesIO(bomb))
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


def test_shapes_are_compared_before_values_are_decompressed():
    stream = io.BytesIO()
    save_checkpoint(stream, {"w": torch.zeros(20_000_000)})
    packed = gzip.compress(stream.getvalue(), 1)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="shape"):
            load_checkpoint(io.BytesIO(packed), {"w": torch.zeros(2)})
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
