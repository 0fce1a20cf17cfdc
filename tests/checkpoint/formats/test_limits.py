"""Small files that claim a lot, and paths that are not regular files: an error at once, without memory."""

import gzip
import io
import json
import os
import socket
import struct
import tracemalloc
import zipfile

import pytest
import torch

from flodl.checkpoint import (
    checkpoint_keys,
    latest_bundle,
    load_checkpoint,
    read_bundle,
    read_checkpoint,
    save_bundle,
    save_checkpoint,
)
from flodl.checkpoint.formats import fdlc, safetensors, torch_save
from flodl.core import CheckpointError, DamagedError

ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
READERS = [checkpoint_keys, read_checkpoint, lambda source: load_checkpoint(source, {"w": torch.zeros(2)})]


@pytest.fixture
def little_memory():
    """Fail if Python allocates more than a few megabytes."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


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
def test_a_header_with_a_false_size_allocates_nothing(header, claims, little_memory):
    text = json.dumps(header).encode()
    data = struct.pack("<Q", claims or len(text)) + text + bytes(8)
    with pytest.raises(DamagedError):
        read_checkpoint(io.BytesIO(data))


def nested_dicts(depth):
    """Return dicts that contain each other twice per level: 2 ** depth paths in a small file."""
    table = {"weight": torch.zeros(1)}
    for _ in range(depth):
        table = {"a": table, "b": table}
    return table


@pytest.mark.parametrize("read", READERS)
def test_nested_dicts_with_too_many_paths_raise(tmp_path, read, monkeypatch):
    monkeypatch.setattr(torch_save, "MAX_NAMES", 1000)
    torch.save(nested_dicts(60), tmp_path / "bomb.pt")
    assert (tmp_path / "bomb.pt").stat().st_size < 10_000
    with pytest.raises(DamagedError, match="its nested dicts have more than 1000 names"):
        read(tmp_path / "bomb.pt")


def test_dicts_that_contain_themselves_raise(tmp_path):
    table = {"weight": torch.zeros(1)}
    table["self"] = table
    torch.save(table, tmp_path / "self.pt")
    with pytest.raises(DamagedError, match="nested more than 100 deep, or contain themselves"):
        checkpoint_keys(tmp_path / "self.pt")


def with_pickle(folder, pickled):
    """Return a torch.save file with another pickle."""
    torch.save({"weight": torch.zeros(1)}, folder / "original.pt")
    with zipfile.ZipFile(folder / "original.pt") as old, zipfile.ZipFile(folder / "bomb.pt", "w") as new:
        for member in old.infolist():
            new.writestr(member.filename, pickled if "data.pkl" in member.filename else old.read(member))
    return folder / "bomb.pt"


# Each level is a tuple with the previous one twice; the hash of the outermost one visits all of them.
DOUBLED = b"K\x01\x85" + b"q\x01h\x01\x86" * 60


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02}" + DOUBLED + b"K\x01s.",  # a key of a dict
        b"\x80\x02cbuiltins\nset\n](" + DOUBLED + b"e\x85R.",  # an item of a set
        b"\x80\x02}(" + DOUBLED + b"K\x01u.",
        b"\x80\x02}" + b"(K\x01q\x01h\x01t" + b"q\x01(h\x01h\x01h\x01t" * 60 + b"K\x01s.",
    ],
)
@pytest.mark.parametrize("read", READERS)
def test_a_pickle_with_nested_tuples_that_would_take_hours_raises(tmp_path, read, pickled):
    path = with_pickle(tmp_path, pickled)
    for source in (path, io.BytesIO(path.read_bytes())):
        with pytest.raises(DamagedError, match=r"its tuples are nested so that \d+ bytes stand for"):
            read(source)


def fdlc_of_zeros(num_bytes):
    name = b"w"
    entry = struct.pack("<I", len(name)) + name + struct.pack("<IqBQ", 1, num_bytes // 4, 3, num_bytes)
    return b"FDLC" + struct.pack("<I", 2) + bytes(32) + struct.pack("<I", 1) + entry


@pytest.mark.parametrize("read", READERS)
def test_a_compressed_file_that_expands_a_thousandfold_raises(tmp_path, read, little_memory):
    block = gzip.compress(bytes(16 << 20), 9, mtime=0)
    data = gzip.compress(fdlc_of_zeros(4 << 30), mtime=0) + block * 256
    (tmp_path / "bomb.fdl.gz").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"claims to expand to 429\d+ or more, over 100 times"):
        read(tmp_path / "bomb.fdl.gz")


def test_the_names_of_a_compressed_file_are_read_without_its_values(tmp_path, little_memory):
    with gzip.open(tmp_path / "zeros.fdl.gz", "wb", compresslevel=1) as file:
        file.write(fdlc_of_zeros(64 << 20))
        for _ in range(64):
            file.write(bytes(1 << 20))
    assert checkpoint_keys(tmp_path / "zeros.fdl.gz") == ["w"]


@pytest.mark.parametrize("read", READERS)
def test_a_compressed_file_with_a_huge_header_raises(read, little_memory):
    block = gzip.compress(b"[]," * (1 << 20), 9, mtime=0)
    data = gzip.compress(struct.pack("<Q", 90_000_000) + b"[", mtime=0) + block * 30
    with pytest.raises(CheckpointError, match="claims to expand to 90000000 or more, over 32 times"):
        read(io.BytesIO(data))


def test_more_tensors_than_a_file_can_have_raise(monkeypatch):
    tensors = {f"w{index}": torch.zeros(1) for index in range(5)}
    files = []
    for format in ("safetensors", "fdlc"):
        stream = io.BytesIO()
        save_checkpoint(stream, tensors, format=format)
        files.append((format, stream.getvalue()))
    for module in (safetensors, fdlc):
        monkeypatch.setattr(module, "MAX_TENSORS", 4)
    for format, data in files:
        with pytest.raises(DamagedError, match="it claims 5 tensors"):
            read_checkpoint(io.BytesIO(data))
        with pytest.raises(CheckpointError, match="there are 5 tensors; a file can have 4"):
            save_checkpoint(io.BytesIO(), tensors, format=format)


def special_files(folder):
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
    (folder / "directory").mkdir()
    (folder / "device").symlink_to("/dev/zero")
    return {
        folder / "pipe": "it is not a regular file",
        folder / "socket": "it is not a regular file",
        folder / "directory": "Is a directory",
        folder / "device": "it is not a regular file",
    }


@pytest.mark.timeout(20)
@pytest.mark.parametrize("read", READERS)
def test_a_path_that_is_not_a_regular_file_raises_at_once(tmp_path, read, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    for path, kind in special_files(tmp_path.relative_to(tmp_path)).items():
        with pytest.raises(CheckpointError, match=f"cannot read '{path}': {kind}"):
            read(path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["manifest.json", "model.fdl", "data.json"])
def test_a_part_of_a_bundle_that_is_not_a_regular_file_is_damage(tmp_path, name, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bundle = save_bundle("run", 1, {"model": {"w": torch.ones(2)}, "data": {"position": 7}})
    (bundle / name).unlink()
    for path, kind in special_files(tmp_path.relative_to(tmp_path)).items():
        (bundle / name).unlink(missing_ok=True)
        (bundle / name).symlink_to(os.path.abspath(path))
        with pytest.raises(DamagedError, match=kind):
            read_bundle(bundle)
        assert latest_bundle("run").bundle is None
    capsys.readouterr()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_an_endless_stream_raises(device):
    with open(device, "rb") as stream, pytest.raises(CheckpointError):
        read_checkpoint(stream)


@pytest.mark.timeout(20)
def test_a_file_named_like_a_bundle_does_not_prevent_saving(tmp_path):
    os.mkfifo(tmp_path / "step-00000003")
    path = save_bundle(tmp_path, 3, {"data": {"position": 7}})
    assert read_bundle(latest_bundle(tmp_path).bundle) == {"data": {"position": 7}}
    assert path.name == "step-00000003.2"
