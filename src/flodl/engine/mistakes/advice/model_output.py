"""Explains a loss that got all outputs of a model, a dict for example, instead of one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from torch import Tensor, nn

from flodl.core.formats import with_article

from ...batch.tree import container_items
from .frames import frames_of

# What torch and Python say about a value that is not a tensor; the groups are its type and an attribute.
_WRONG_TYPES = (
    r"argument 'input' \(position \d+\) must be (?:a )?Tensor, not (\w+)()",
    r"unsupported operand type\(s\) for [^:]+: '(\w+)' and 'Tensor'()",
    r"unsupported operand type\(s\) for [^:]+: 'Tensor' and '(\w+)'()",
    r"'(\w+)' object has no attribute '(\w+)'",
)
_USUAL_NAMES = ("logits", "output", "outputs", "out", "prediction", "predictions", "y")
_MOST_NAMES = 6


def advice_for_output(told: str, error: Exception, model: nn.Module, batch: tuple[Any, ...]) -> str:
    """Return which output to pass to the loss, or "" if the error has another cause."""
    found = next((found for pattern in _WRONG_TYPES if (found := re.search(pattern, told))), None)
    frames = frames_of(error)
    if found is None or found[1] in _types_in(batch) or _is_inside(model, frames):
        return ""
    kind, attribute = found.groups()
    value = next((one for one in _values(frames) if _may_be_output(one, kind, batch)), None)
    if value is None:
        # The type alone says enough in arithmetic; an attribute may be missing in any dict.
        is_usual = kind in ("dict", "tuple", "list", "OrderedDict") and not attribute
        use = "model(x)[0]" if kind in ("tuple", "list") else "model(x)['logits']"
        return (
            f"If the model returns {with_article(kind)}, pass one of its parts to the loss: {use}."
            if is_usual
            else ""
        )
    if attribute and not hasattr(Tensor, attribute):
        return ""
    return f"The model returns {_described(value, kind)}"


def _described(value: Any, kind: str) -> str:
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return f"{with_article(kind)} of {len(value)}: pass one of its parts to the loss, as in model(x)[0]."
    names = [str(name) for name in container_items(value) or value._asdict()]
    best = next((name for name in _USUAL_NAMES if name in names), names[0])
    is_mapping = isinstance(value, Mapping)
    use = f"[{best!r}]" if is_mapping else f".{best}"
    shown = ", ".join(map(repr, names[:_MOST_NAMES])) + ", …" * (len(names) > _MOST_NAMES)
    what = "keys" if is_mapping else "fields"
    return f"{with_article(kind)} with the {what} {shown}: pass one of them to the loss, as in model(x){use}."


def _is_inside(model: nn.Module, frames: list[FrameType]) -> bool:
    """Return whether the model itself raised the error, not what was done with its output."""
    calls = [frame for frame in frames if frame.f_code.co_name == "_call_impl"]
    return any(frame.f_locals.get("self") is model for frame in calls)


def _values(frames: list[FrameType]) -> Iterator[Any]:
    """Yield the local variables of functions."""
    for frame in frames:
        for value in frame.f_locals.values():
            yield value
            if isinstance(value, tuple):  # the arguments of a call
                yield from value


def _may_be_output(value: Any, kind: str, batch: tuple[Any, ...]) -> bool:
    """Return whether a value has this type and contains tensors that are not all of the batch."""
    if type(value).__name__ != kind:
        return False
    items = container_items(value)
    parts = items.values() if items is not None else value if isinstance(value, tuple | list) else ()
    tensors = [part for part in parts if isinstance(part, Tensor)]
    return any(all(tensor is not part for part in batch) for tensor in tensors)


def _types_in(batch: tuple[Any, ...]) -> set[str]:
    """Return the types of the parts of a batch, at any depth that a step function usually reads."""
    inner = [item for part in batch for item in (container_items(part) or {}).values()]
    listed = [item for part in batch if isinstance(part, tuple | list) for item in part]
    return {type(value).__name__ for value in (*batch, *inner, *listed)}
