"""Checkpoints with random mutations."""

import gzip
import io
import json
import random
from collections.abc import Callable

import torch
from torch import Tensor

from flodl.checkpoint import read_checkpoint, save_checkpoint
from flodl.core import CheckpointError

TIED = torch.arange(6.0).reshape(2, 3)
TENSORS = {
    "body.weight": torch.linspace(0, 1, 12).reshape(3, 4),
    "body.bias": torch.zeros(4, dtype=torch.bfloat16),
    "head.weight": TIED,
    "tied.weight": TIED,
    "count": torch.tensor(3),
    "complex": torch.tensor([1 + 2j], dtype=torch.complex128),
}


def flip_bits(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice([1, 1, 1, 8])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut_off(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def insert(data: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(data) + 1)
    data[place:place] = rng.randbytes(rng.randrange(1, 20))


def remove(data: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(data))
    del data[place : place + rng.randrange(1, 20)]


def overwrite(data: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(data))
    size = rng.choice([1, 4, 8, 30])
    data[place : place + size] = rng.choice([bytes(size), b"\xff" * size, rng.randbytes(size)])


def move(data: bytearray, rng: random.Random) -> None:
    source, target = rng.randrange(len(data)), rng.randrange(len(data))
    data[target : target + 16] = data[source : source + 16]


def lie_in_header(data: bytearray, rng: random.Random) -> None:
    """Change a number or a word of the JSON header, if there is one."""
    length = int.from_bytes(data[:8], "little")
    try:
        text = json.loads(bytes(data[8 : 8 + length]))
        name = rng.choice([key for key in text if key != "__metadata__"])
        broken = not isinstance(text[name], dict) or text[name].keys() != {"dtype", "shape", "data_offsets"}
    except (ValueError, IndexError, TypeError):
        broken = True
    if broken:  # by an earlier mutation, or compressed
        flip_bits(data, rng)
        return
    lies = [-1, 2**40, 2**63, 2**70, "8", None, 1.5, [], {}, True]
    change = rng.choice(["dtype", "shape", "data_offsets"])
    if change == "dtype":
        text[name]["dtype"] = rng.choice([*lies, "F64", "U8", "F99"])
    else:
        values = text[name][change]
        values.insert(rng.randrange(len(values) + 1), rng.choice(lies))
        if rng.random() < 0.7:
            values.pop(rng.randrange(len(values)))
    changed = json.dumps(text).encode()
    data[: 8 + length] = len(changed).to_bytes(8, "little") + changed


MUTATIONS: list[Callable[[bytearray, random.Random], None]] = [
    flip_bits, cut_off, insert, remove, overwrite, move, lie_in_header,
]  # fmt: skip


def originals() -> dict[str, bytes]:
    stream, fdlc, torch_file = io.BytesIO(), io.BytesIO(), io.BytesIO()
    save_checkpoint(stream, TENSORS, metadata={"structural_hash": "abc"})
    plain = {name: tensor for name, tensor in TENSORS.items() if name != "complex"}
    save_checkpoint(fdlc, plain, format="fdlc")
    torch.save(plain, torch_file)
    found = {
        "safetensors": stream.getvalue(),
        "gz": gzip.compress(stream.getvalue(), 1, mtime=0),
        "fdlc": fdlc.getvalue(),
        "torch": torch_file.getvalue(),
    }
    try:
        import zstandard
    except ImportError:
        return found
    return found | {"zst": zstandard.ZstdCompressor(write_checksum=True).compress(stream.getvalue())}


def mutate(original: bytes, rng: random.Random) -> bytes:
    """Return the file with one or two mutations."""
    data = bytearray(original)
    for _ in range(rng.choice([1, 1, 2])):
        rng.choice(MUTATIONS)(data, rng)
        data = data or bytearray(1)
    return bytes(data)


def same_tensors(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def fate(data: bytes) -> str:
    """Read a file and return 'refused', 'the same' or 'changed'; other errors are raised."""
    try:
        tensors, _ = read_checkpoint(io.BytesIO(data))
    except CheckpointError:
        return "refused"
    return "the same" if same_tensors(tensors, TENSORS) else "changed"
