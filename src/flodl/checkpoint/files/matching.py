"""Matching a checkpoint to a model: names, shapes and types, all checked before any value changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from flodl.core import CheckpointError, log
from flodl.core.formats import a_type, counted
from flodl.core.paths import did_you_mean, matches, nearest, suggestion

from ..formats.storable import kind_of
from .keywords import suggest_keywords
from .values import check_copies, check_ties, check_values_fit


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
    verify: Callable[[], object] | None = None,
) -> Match:
    """Match the names of file and model; raise at the first mismatch of a name, shape or type.

    `verify` raises if the file does not match its checksum, and is None if it has none.
    """
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
    wrong = _not_allowed(missing, allow_missing), _not_allowed(skipped, allow_unexpected)
    if len(wrong[0]) == len(wrong[1]) == 1 and not found_under:
        _check_renamed(available[wrong[1][0]], wrong[0][0], stored, wanted, where, verify)
    # Only unmatched names are candidates for suggestions.
    lacking = {name: wanted[name] for name in missing}
    spare = {name: stored[available[name]] for name in skipped}
    _check_allowed(lacking, allow_missing, spare, f"{where} lacks", "allow_missing", found_under)
    extra = f"{where} has names that the model lacks:"
    _check_allowed(spare, allow_unexpected, lacking, extra, "allow_unexpected")
    _check_targets(sources, stored, wanted, where, is_file=True)
    return Match(sources, tuple(skipped), tuple(missing))


@suggest_keywords
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


def _check_allowed(
    names: Mapping[str, Tensor],
    allowed: Sequence[str],
    others: Mapping[str, Tensor],
    what: str,
    option: str,
    found_under: str = "",
) -> None:
    wrong = _not_allowed([*names], allowed)
    if not wrong:
        return
    shown = ", ".join(map(repr, wrong[:4])) + (f" and {len(wrong) - 4} more" if len(wrong) > 4 else "")
    if found_under:
        raise CheckpointError(
            f"{what} {shown}, but has all of them under {found_under!r}. Nothing was loaded. "
            f"Pass prefix={found_under!r}."
        )
    hint = _hint(wrong[0], names[wrong[0]], others)
    raise CheckpointError(
        f"{what} {shown}. {hint}Nothing was loaded. If this is intended, pass "
        f"{option}=[{wrong[0]!r}] or a pattern."
    )


def _hint(name: str, tensor: object, others: Mapping[str, Tensor]) -> str:
    """Return which of the other side's unmatched names may correspond to a name, best with its shape.

    >>> others = {f"head.{part}": torch.zeros(2) for part in ("weight", "bias")}
    >>> _hint("top.weight", torch.zeros(2), others), _hint("top.weight", torch.zeros(2), {})
    ("Did you mean 'head.weight'? ", '')
    """
    if not others:
        return ""
    shape, last = _shape_of(tensor), name.rpartition(".")[2]
    same = [
        other
        for other in others
        if other.rpartition(".")[2] == last and shape is not None and _shape_of(others[other]) == shape
    ]
    close = nearest(name, same) or (same if len(same) == 1 else [])
    return f"{did_you_mean(close) or suggestion(name, others, known_as='names')} "


def _shape_of(tensor: object) -> torch.Size | None:
    return tensor.shape if isinstance(tensor, Tensor) and not is_lazy(tensor) else None


def _not_allowed(names: Sequence[str], allowed: Sequence[str]) -> list[str]:
    return [name for name in names if not any(_matches(pattern, name) for pattern in as_list(allowed))]


def _check_renamed(
    old: str,
    new: str,
    stored: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    where: str,
    verify: Callable[[], object] | None,
) -> None:
    """Raise if the only name that is missing and the only unexpected one have the same shape and type."""
    tensor = wanted[new]
    if not isinstance(tensor, Tensor) or is_lazy(tensor):
        return
    if (stored[old].shape, stored[old].dtype) != (tensor.shape, tensor.dtype):
        return
    damaged = " If it was not renamed, the file may be damaged: use another copy."
    if verify is not None:
        verify()
        damaged = ""
    raise CheckpointError(
        f"{where} has {old!r} where the model has {new!r}, both of shape {tuple(tensor.shape)}. Nothing was "
        f"loaded. If it was renamed, write a new file with migrate_checkpoint and "
        f"rename={{{old!r}: {new!r}}}.{damaged}"
    )


def warn_of_unused(
    option: str, patterns: Sequence[str], names: Mapping[str, object], others: Mapping[str, object], who: str
) -> None:
    """Warn about patterns that match no name of the file and none of the model, as if misspelled."""
    for pattern in as_list(patterns):
        if not any(_matches(pattern, name) for name in (*names, *others)):
            parts = {name[:end] for name in names for end, mark in enumerate(name) if mark == "."}
            close = nearest(pattern.rstrip(".*"), sorted({*parts, *names}), limit=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            log.warn("%s has %r, which matches no name of %s.%s", option, pattern, who, hint)


def as_list(patterns: Sequence[str]) -> Sequence[str]:
    """Return a single pattern as a list."""
    return [patterns] if isinstance(patterns, str) else patterns


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
    sources: Mapping[str, str],
    stored: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    where: str,
    *,
    is_file: bool = False,
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
        others = len(wrong) - 1
        more = f" {counted(others, 'more name')} {'differs' if others == 1 else 'differ'}." if others else ""
        raise CheckpointError(
            f"{where} has shape {tuple(stored[sources[name]].shape)}, the model {tuple(wanted[name].shape)}."
            f"{more} Nothing was loaded. Build the model with the sizes it was saved with."
            f"{_without(wrong, where) if is_file and len(wrong) < len(sources) else ''}",
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


def _without(names: Sequence[str], where: str) -> str:
    """Return how to load a file without the names whose shapes differ.

    >>> _without(["head.weight", "head.bias"], "'a.fdl'").rpartition(", ")[2]
    "and load 'new.fdl' with allow_missing=['head.*']."
    """
    parts = {name.rpartition(".")[0] for name in names}
    patterns = [f"{part}.*" for part in parts] if len(parts) == 1 and "" not in parts else [*names]
    source = where if where.startswith("'") else "source"
    return (
        " To load the rest, as for fine-tuning with a different head, write a file without them: "
        f"migrate_checkpoint({source}, 'new.fdl', model.state_dict(), by_shape=False), and load 'new.fdl' "
        f"with allow_missing={patterns}."
    )


def _check_writable(name: str, tensor: object) -> None:
    """Raise if a tensor cannot be written in place; checked before any tensor is changed."""
    if not isinstance(tensor, Tensor):
        why = f"the value is {a_type(tensor)}. Only tensors can be loaded into."
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
