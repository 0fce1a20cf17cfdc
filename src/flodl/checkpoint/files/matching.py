"""Matching a checkpoint to a model: names, shapes and types, all checked before any value changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from flodl.core import CheckpointError
from flodl.core.paths import matches, suggestion

from ..formats.storable import kind_of, storage_key


@dataclass(frozen=True)
class Match:
    """The stored name for each name of the model (`sources`), and the unmatched names of either side."""

    sources: Mapping[str, str]
    skipped: tuple[str, ...]
    missing: tuple[str, ...]


def match_names(
    stored: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    *,
    where: str,
    prefix: str = "",
    other_names: Mapping[str, str] | None = None,
    allow_missing: Sequence[str] = (),
    allow_unexpected: Sequence[str] = (),
) -> Match:
    """Match the names of file and model; raise at the first mismatch of a name, shape or type."""
    start = f"{prefix.rstrip('.')}." if prefix else ""
    available = {name[len(start) :]: name for name in stored if name.startswith(start)}
    if start and not available:
        raise CheckpointError(f"{where} has nothing under {prefix!r}. {_prefix_hint(prefix, stored)}")
    alternatives = {name: (other_names or {}).get(name, name) for name in wanted}
    pairs = {name: name if name in available else alternatives[name] for name in wanted}
    sources = {name: available[key] for name, key in pairs.items() if key in available}
    used = set(sources.values())
    missing = [name for name in wanted if name not in sources]
    skipped = [name for name, full in available.items() if full not in used]
    found_under = _common_prefix(missing, stored)
    _check_allowed(missing, allow_missing, available, f"{where} lacks", "allow_missing", found_under)
    extra = f"{where} has names that the model lacks:"
    _check_allowed(skipped, allow_unexpected, wanted, extra, "allow_unexpected")
    _check_targets(sources, stored, wanted, where)
    return Match(sources, tuple(skipped), tuple(missing))


def check_loadable(stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str) -> None:
    """Raise unless every wanted tensor can take the stored one of the same name: kind, shape, type, values.

    >>> check_loadable({"w": torch.ones(2)}, {"w": torch.ones(3)}, "it")
    Traceback (most recent call last):
    flodl.core.errors.CheckpointError: at 'w': it has shape (2,), the model (3,). Nothing was loaded. ...
    """
    sources = {name: name for name in wanted}
    _check_targets(sources, stored, wanted, where)
    check_copies(sources, stored, wanted, where)
    check_values_fit(sources, stored, wanted, where)
    check_ties(sources, stored, wanted, where)


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


def _check_allowed(
    names: Sequence[str],
    allowed: Sequence[str],
    others: Mapping[str, object],
    what: str,
    option: str,
    found_under: str = "",
) -> None:
    patterns = [allowed] if isinstance(allowed, str) else allowed
    wrong = [name for name in names if not any(_matches(pattern, name) for pattern in patterns)]
    if not wrong:
        return
    shown = ", ".join(map(repr, wrong[:4])) + (f" and {len(wrong) - 4} more" if len(wrong) > 4 else "")
    if found_under:
        raise CheckpointError(
            f"{what} {shown}, but has all of them under {found_under!r}. Nothing was loaded. "
            f"Pass prefix={found_under!r}."
        )
    hint = suggestion(wrong[0], others, known_as="names")
    raise CheckpointError(
        f"{what} {shown}. {hint} Nothing was loaded. If this is intended, pass "
        f"{option}=[{wrong[0]!r}] or a pattern."
    )


def _common_prefix(missing: Sequence[str], stored: Mapping[str, object]) -> str:
    """Return the prefix under which the file has all missing names (module wrappers add one), or ''."""
    if not missing:
        return ""
    ending = f".{missing[0]}"
    prefixes = [name[: -len(ending)] for name in stored if name.endswith(ending)]
    return next((prefix for prefix in prefixes if all(f"{prefix}.{name}" in stored for name in missing)), "")


def _prefix_hint(prefix: str, stored: Mapping[str, object]) -> str:
    known = {
        name[:position] for name in stored for position, character in enumerate(name) if character == "."
    }
    return suggestion(prefix.rstrip("."), sorted(known), known_as="parts")


def _check_targets(
    sources: Mapping[str, str], stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str
) -> None:
    for name, source in sources.items():
        _check_writable(name, wanted[name])
        if (kind := kind_of(stored[source])) != "dense":
            raise CheckpointError(
                f"{where} has a tensor that is {kind}; only dense ones can be loaded. Nothing was loaded. "
                "Save tensor.to_dense() instead, or leave this name out.",
                path=name,
            )
    wrong = [name for name, source in sources.items() if stored[source].shape != wanted[name].shape]
    if wrong:
        name = wrong[0]
        more = f" {len(wrong) - 1} more names differ." if len(wrong) > 1 else ""
        raise CheckpointError(
            f"{where} has shape {tuple(stored[sources[name]].shape)}, the model {tuple(wanted[name].shape)}."
            f"{more} Nothing was loaded. Build the model with the sizes it was saved with.",
            path=name,
        )
    for name, source in sources.items():
        stored_dtype, dtype = stored[source].dtype, wanted[name].dtype
        if not torch.can_cast(stored_dtype, dtype):
            raise CheckpointError(
                f"{where} has {stored_dtype}, the model {dtype}, which cannot represent such values. "
                "Nothing was loaded. Convert the model's tensor, or leave this name out.",
                path=name,
            )


def _check_writable(name: str, tensor: object) -> None:
    """Raise if a tensor cannot be written in place; checked before any tensor is changed."""
    if not isinstance(tensor, Tensor):
        why = f"the value is a {type(tensor).__name__}. Only tensors can be loaded into."
    elif is_lazy(tensor):
        why = "the parameter has no shape yet. Call the model once first."
    elif tensor.is_meta:
        why = (
            "the tensor is on the meta device and has no memory. "
            "Move the model to a device first, for example with to_empty(device='cpu')."
        )
    elif (kind := kind_of(tensor)) != "dense":
        why = f"the tensor is {kind}, but only dense tensors can be loaded into. Pass tensor.to_dense()."
    elif tensor.is_inference() and not torch.is_inference_mode_enabled():
        why = (
            "the tensor was created in inference mode and cannot be changed outside it. Create the model "
            "outside, or load inside torch.inference_mode()."
        )
    elif any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride())):
        why = "several elements of the tensor share one memory location (expand). Pass tensor.clone()."
    else:
        return
    raise CheckpointError(why, path=name)


def _matches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a name; a `*` at its end matches everything below.

    >>> _matches("head.*", "head.linear_1.weight"), _matches("*.bias", "head.linear_1.bias")
    (True, False)
    """
    return matches(pattern, name) or (pattern.endswith("*") and matches(f"{pattern.rstrip('*')}**", name))
