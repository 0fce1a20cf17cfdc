"""Whether a checkpoint fits a model: names, shapes and types, all checked before the first value changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from flodl.core import CheckpointError
from flodl.core.paths import matches, suggestion

from ..formats.storable import place_of


@dataclass(frozen=True)
class Fit:
    """Which stored tensor fills which of the model (`sources`), and the names left over on either side."""

    sources: Mapping[str, str]
    skipped: tuple[str, ...]
    missing: tuple[str, ...]


def fit(
    stored: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    *,
    where: str,
    prefix: str = "",
    other_names: Mapping[str, str] | None = None,
    allow_missing: Sequence[str] = (),
    allow_unexpected: Sequence[str] = (),
) -> Fit:
    """Pair the names of file and model, or raise with the first thing that does not fit."""
    lead = f"{prefix.rstrip('.')}." if prefix else ""
    offered = {name[len(lead) :]: name for name in stored if name.startswith(lead)}
    if lead and not offered:
        raise CheckpointError(f"{where} has nothing under {prefix!r}. {_parts_hint(prefix, stored)}")
    called = {name: (other_names or {}).get(name, name) for name in wanted}
    pairs = {name: name if name in offered else called[name] for name in wanted}
    sources = {name: offered[known] for name, known in pairs.items() if known in offered}
    used = set(sources.values())
    missing = [name for name in wanted if name not in sources]
    skipped = [name for name, full in offered.items() if full not in used]
    found_under = _common_prefix(missing, stored)
    _refuse(missing, allow_missing, offered, f"{where} lacks", "allow_missing", found_under)
    extra = f"{where} has, and the model lacks,"
    _refuse(skipped, allow_unexpected, wanted, extra, "allow_unexpected")
    _check_places(sources, stored, wanted, where)
    return Fit(sources, tuple(skipped), tuple(missing))


def check_ties(
    sources: Mapping[str, str], stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str
) -> None:
    """Refuse unequal values for two names of one tensor of the model: the last of them would win."""
    first: dict[tuple[object, ...], str] = {}
    for name, source in sources.items():
        if not wanted[name].numel():
            continue
        twin = first.setdefault(place_of(wanted[name]), name)
        if stored[source] is stored[sources[twin]]:
            continue
        dtype = wanted[name].dtype
        if not _same_bits(stored[source].to(dtype), stored[sources[twin]].to(dtype)):
            raise CheckpointError(
                f"{where} has other values for it than for {twin!r}, and in the model both are one tensor. "
                "Nothing was loaded. Build the model without tying them, or make them equal in the file.",
                path=name,
            )


def check_values_fit(
    sources: Mapping[str, str], stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str
) -> None:
    """Refuse values that become infinite, or wrap around, in the type that the model has."""
    for name, source in sources.items():
        value = _beyond(stored[source], wanted[name].dtype)
        if value is not None:
            raise CheckpointError(
                f"{where} has the value {value}, which {wanted[name].dtype} cannot hold. "
                f"Nothing was loaded. Convert the model's tensor to {stored[source].dtype}, or leave this "
                "name out.",
                path=name,
            )


def _beyond(values: Tensor, dtype: torch.dtype) -> int | float | complex | None:
    """Give a finite value that a type cannot hold, where there is one.

    >>> _beyond(torch.tensor([1.0, 1e6, torch.inf]), torch.float16), _beyond(torch.tensor([-1]), torch.uint8)
    (1000000.0, -1)
    """
    if values.dtype in (dtype, torch.bool) or not values.numel():
        return None
    if not (dtype.is_floating_point or dtype.is_complex):
        held, whole = torch.iinfo(dtype), values.numpy()  # torch has no minimum of unsigned types
        return next((v for v in (int(whole.min()), int(whole.max())) if not held.min <= v <= held.max), None)
    if torch.finfo(dtype).max >= _largest(values.dtype):
        return None
    cast = values.to(dtype)
    lost = values[~(cast.float() if cast.element_size() == 1 else cast).isfinite()]
    lost = lost.to(torch.complex128 if values.is_complex() else torch.float64)
    lost = lost[lost.isfinite()]
    return lost[0].item() if len(lost) else None


def _largest(dtype: torch.dtype) -> float:
    return (torch.finfo if dtype.is_floating_point or dtype.is_complex else torch.iinfo)(dtype).max


def _same_bits(one: Tensor, other: Tensor) -> bool:
    # Not by value: NaN is unlike itself, and -0.0 is like 0.0.
    flat = [tensor.resolve_conj().resolve_neg().contiguous().reshape(-1) for tensor in (one, other)]
    return torch.equal(flat[0].view(torch.uint8), flat[1].view(torch.uint8))


def _refuse(
    names: Sequence[str],
    allowed: Sequence[str],
    others: Mapping[str, object],
    what: str,
    option: str,
    found_under: str = "",
) -> None:
    patterns = [allowed] if isinstance(allowed, str) else allowed
    refused = [name for name in names if not any(_allows(pattern, name) for pattern in patterns)]
    if not refused:
        return
    shown = ", ".join(map(repr, refused[:4])) + (f" and {len(refused) - 4} more" if len(refused) > 4 else "")
    if found_under:
        raise CheckpointError(
            f"{what} {shown}, but has all of them under {found_under!r}. Nothing was loaded. "
            f"Pass prefix={found_under!r}."
        )
    hint = suggestion(refused[0], others, known_as="names")
    raise CheckpointError(
        f"{what} {shown}. {hint} Nothing was loaded. If this is meant, pass "
        f"{option}=[{refused[0]!r}] or a pattern."
    )


def _common_prefix(missing: Sequence[str], stored: Mapping[str, object]) -> str:
    """Give the prefix under which the file has every missing name, as wrappers of modules add one."""
    if not missing:
        return ""
    ending = f".{missing[0]}"
    leads = [name[: -len(ending)] for name in stored if name.endswith(ending)]
    return next((lead for lead in leads if all(f"{lead}.{name}" in stored for name in missing)), "")


def _parts_hint(prefix: str, stored: Mapping[str, object]) -> str:
    parts = {name[:position] for name in stored for position, sign in enumerate(name) if sign == "."}
    return suggestion(prefix.rstrip("."), sorted(parts), known_as="parts")


def _check_places(
    sources: Mapping[str, str], stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str
) -> None:
    for name in sources:
        _check_writable(name, wanted[name])
    wrong = [name for name, source in sources.items() if stored[source].shape != wanted[name].shape]
    if wrong:
        name = wrong[0]
        more = f" {len(wrong) - 1} more names differ." if len(wrong) > 1 else ""
        raise CheckpointError(
            f"{where} has shape {tuple(stored[sources[name]].shape)}, the model {tuple(wanted[name].shape)}."
            f"{more} Nothing was loaded. Build the model with the sizes that it was saved with.",
            path=name,
        )
    for name, source in sources.items():
        kept, needed = stored[source].dtype, wanted[name].dtype
        if not torch.can_cast(kept, needed):
            raise CheckpointError(
                f"{where} has {kept}, the model {needed}, which cannot hold such values. "
                "Nothing was loaded. Convert the model's tensor, or leave this name out.",
                path=name,
            )


def _check_writable(name: str, tensor: object) -> None:
    """Refuse what cannot be written to in place: found at its turn, the ones before it would be changed."""
    if not isinstance(tensor, Tensor):
        why = f"the value is a {type(tensor).__name__}. Only tensors can be filled."
    elif is_lazy(tensor):
        why = "the parameter has no shape yet. Call the model once first."
    elif tensor.is_meta:
        why = (
            "the tensor is on the meta device and cannot hold values. "
            "Move the model to a device first, for example with to_empty(device='cpu')."
        )
    elif tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        why = f"the tensor is {kind}, and only dense ones can be filled. Give tensor.to_dense()."
    elif tensor.is_inference() and not torch.is_inference_mode_enabled():
        why = (
            "the tensor was made in inference mode and cannot be changed outside it. Make the model outside, "
            "or load inside torch.inference_mode()."
        )
    elif any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride())):
        why = "one element in memory stands for several of the tensor (expand). Give tensor.clone()."
    else:
        return
    raise CheckpointError(why, path=name)


def _allows(pattern: str, name: str) -> bool:
    """Say whether a pattern names a tensor; a `*` at its end stands for all that lies below.

    >>> _allows("head.*", "head.linear_1.weight"), _allows("*.bias", "head.linear_1.bias")
    (True, False)
    """
    return matches(pattern, name) or (pattern.endswith("*") and matches(f"{pattern.rstrip('*')}**", name))
