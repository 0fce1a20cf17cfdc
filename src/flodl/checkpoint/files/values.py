"""Values of a checkpoint in the types of a model: which fit, which are lost, and which are tied."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flodl.core import CheckpointError, log

from ..formats.storable import storage_key

# A few tiny values among thousands are normal in trained weights, and 0 is as good.
_LOST_SHARE = 1e-3
_NUM_SHOWN = 3


def check_copies(
    sources: Mapping[str, str], stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str
) -> None:
    """Raise if a stored tensor has no values, or if torch cannot copy its type to the tensor of the model."""
    tried: set[tuple[torch.dtype, torch.dtype, torch.device]] = set()
    for name, source in sources.items():
        value, target = stored[source], wanted[name]
        if value.is_meta:
            raise CheckpointError(
                f"{where} has a tensor on the meta device, which has no values. Nothing was loaded. "
                "Initialize the model before saving it, or leave this name out.",
                path=name,
            )
        pair = value.dtype, target.dtype, target.device
        if pair in tried:
            continue
        tried.add(pair)
        try:
            one = torch.empty(1, dtype=value.dtype)
            torch.empty(1, dtype=target.dtype, device=target.device).copy_(one)
        except (RuntimeError, TypeError) as error:
            raise CheckpointError(
                f"{where} has {value.dtype}, which torch cannot copy to {target.dtype} of the model. Nothing "
                "was loaded. Convert one of them, or leave this name out.",
                path=name,
            ) from error


def check_ties(
    sources: Mapping[str, str], stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str
) -> None:
    """Raise if the file has different values for two names that are tied in the model."""
    first_name: dict[tuple[object, ...], str] = {}
    for name, source in sources.items():
        if not wanted[name].numel():
            continue
        twin = first_name.setdefault(storage_key(wanted[name]), name)
        if stored[source] is stored[sources[twin]]:
            continue
        dtype = wanted[name].dtype
        if not _same_bits(stored[source].to(dtype), stored[sources[twin]].to(dtype)):
            raise CheckpointError(
                f"{where} has different values for it and for {twin!r}, but the model ties the two. "
                "Nothing was loaded. Build the model without tying them, or make them equal in the file.",
                path=name,
            )


def check_values_fit(
    sources: Mapping[str, str], stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str
) -> None:
    """Raise if a value would overflow in the dtype of the model."""
    for name, source in sources.items():
        value = _out_of_range(stored[source], wanted[name].dtype)
        if value is not None:
            raise CheckpointError(
                f"{where} has the value {value}, which {wanted[name].dtype} cannot represent. "
                f"Nothing was loaded. Convert the model's tensor to {stored[source].dtype}, or leave this "
                "name out.",
                path=name,
            )


def _out_of_range(values: Tensor, dtype: torch.dtype) -> int | float | complex | None:
    """Return a finite value that the type cannot represent, or None.

    >>> _out_of_range(torch.tensor([1.0, 1e6, torch.inf]), torch.float16)
    1000000.0
    >>> _out_of_range(torch.tensor([-1]), torch.uint8)
    -1
    """
    if values.dtype in (dtype, torch.bool) or not values.numel():
        return None
    if not (dtype.is_floating_point or dtype.is_complex):
        limits, array = torch.iinfo(dtype), values.numpy()  # torch has no min() for unsigned types
        extremes = int(array.min()), int(array.max())
        return next((value for value in extremes if not limits.min <= value <= limits.max), None)
    if torch.finfo(dtype).max >= _max_value(values.dtype):
        return None
    cast = values.to(dtype)
    lost = values[~(cast.float() if cast.element_size() == 1 else cast).isfinite()]
    lost = lost.to(torch.complex128 if values.is_complex() else torch.float64)
    lost = lost[lost.isfinite()]
    return lost[0].item() if len(lost) else None


def _max_value(dtype: torch.dtype) -> float:
    return (torch.finfo if dtype.is_floating_point or dtype.is_complex else torch.iinfo)(dtype).max


def _same_bits(one: Tensor, other: Tensor) -> bool:
    # Not by value: NaN does not equal itself, and -0.0 equals 0.0.
    flat = [tensor.resolve_conj().resolve_neg().contiguous().reshape(-1) for tensor in (one, other)]
    return torch.equal(flat[0].view(torch.uint8), flat[1].view(torch.uint8))


def warn_of_underflow(
    sources: Mapping[str, str], stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str
) -> None:
    """Warn about tensors with many values that become 0, because they are too small for the model's dtype."""
    lost = []
    for name, source in sources.items():
        dtype = wanted[name].dtype
        count, total = _underflow(stored[source], dtype)
        if count > total * _LOST_SHARE:
            lost.append(f"{count} of {total} values of {name!r} ({dtype})")
    if lost:
        more = f" and of {len(lost) - _NUM_SHOWN} more tensors" if len(lost) > _NUM_SHOWN else ""
        log.warn(
            "%s: too small for the dtype of the model, and loaded as 0: %s%s. "
            "Convert the model to the dtype of the file to keep them.",
            where,
            ", ".join(lost[:_NUM_SHOWN]),
            more,
        )


def _underflow(values: Tensor, dtype: torch.dtype) -> tuple[int, int]:
    """Return how many values become 0 in a type, and how many differ from 0 now.

    >>> _underflow(torch.tensor([1e-9, 1.0, 0.0]), torch.float16), _underflow(torch.ones(2), torch.float64)
    ((1, 2), (0, 0))
    """
    if values.dtype == dtype or not (_is_inexact(values.dtype) and _is_inexact(dtype)):
        return 0, 0
    if _smallest(values.dtype) >= _smallest(dtype):
        return 0, 0
    wide = values.to(torch.float32) if values.element_size() == 1 else values
    cast = values.to(dtype)
    is_set = wide != 0
    is_lost = is_set & ((cast.to(torch.float32) if cast.element_size() == 1 else cast) == 0)
    return int(is_lost.sum()), int(is_set.sum())


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _smallest(dtype: torch.dtype) -> float:
    """Return roughly the smallest positive number of a type, including subnormal ones."""
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps
