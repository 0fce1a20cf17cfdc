"""Random tensors of every dtype and memory layout, and their comparison bit by bit."""

import random
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

SUB_BYTE = {getattr(torch, f"{kind}{bits}", None) for kind in ("int", "uint") for bits in range(1, 8)}


def _has_values(dtype: torch.dtype) -> bool:
    return dtype not in SUB_BYTE and not str(dtype).startswith(("torch.qint", "torch.quint"))


DTYPES = sorted(
    {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype) and _has_values(dtype)},
    key=str,
)
MOVABLE = [torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int64]


def random_tensor(rng: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return a contiguous tensor of random bits."""
    count = dtype.itemsize
    for size in shape:
        count *= size
    data = torch.frombuffer(bytearray(rng.randbytes(count)) or bytearray(1), dtype=torch.uint8)[:count]
    if dtype is torch.bool:
        data = data % 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ComplexHalf is experimental
        return data.clone().view(dtype).reshape(shape)


def _layouts(rng: random.Random, dtype: torch.dtype) -> Iterator[Tensor]:
    yield random_tensor(rng, dtype, ())
    yield random_tensor(rng, dtype, (rng.choice([0, 1, 3, 7]),))
    yield random_tensor(rng, dtype, (rng.choice([0, 1, 2]), 3, rng.choice([0, 1, 5])))
    yield random_tensor(rng, dtype, (3, 5)).t()
    yield random_tensor(rng, dtype, (11,))[::3]
    yield random_tensor(rng, dtype, (11,))[5:]
    yield random_tensor(rng, dtype, (1, 3)).expand(4, 3)
    yield random_tensor(rng, dtype, ()).expand(2, 2)
    yield random_tensor(rng, dtype, (200_000 // dtype.itemsize,)).as_strided(
        (2,), (99_999 // dtype.itemsize,)
    )
    if dtype.is_complex and dtype is not torch.complex32:
        yield random_tensor(rng, dtype, (3,)).conj()
        yield random_tensor(rng, dtype, (3,)).conj().imag


def random_tensors(rng: random.Random, *, most: int = 6) -> dict[str, Tensor]:
    """Return named tensors, some of them tied, or views of others."""
    found: dict[str, Tensor] = {}
    for index in range(rng.randrange(most + 1)):
        name = rng.choice(["w", "layer.0.weight", "ä b", "", "x" * 300]) + str(index)
        if found and rng.random() < 0.2:
            found[name] = rng.choice(list(found.values()))
            continue
        layouts = list(_layouts(rng, rng.choice(DTYPES)))
        found[name] = rng.choice(layouts)
    return found


def bits(tensor: Tensor) -> tuple[object, ...]:
    """Return dtype, shape and values as comparable data."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    data = plain.reshape(-1).view(torch.uint8) if plain.numel() else plain.new_empty(0, dtype=torch.uint8)
    return tensor.dtype, tuple(tensor.shape), bytes(data.numpy())


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return list(one) == list(other) and all(bits(one[name]) == bits(other[name]) for name in one)
