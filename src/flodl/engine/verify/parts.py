"""What a window computed, part by part: each gradient, each buffer, the loss and the named values.

One norm over all gradients hides the gradients of a small part, and does not cover buffers and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..device.tensors import square_sum, widened
from ..program.program import StepBody
from .gradients import TOLERANCE, Gradients

# A gradient below this fraction of the tolerated error is mostly rounding: in float32, the gradient of a
# bias before a norm, which is zero in exact arithmetic, was up to 3e-6 of all gradients together.
_SMALL_GRADIENT = 0.1
# The resolution at which two values that were added to a mean can be compared.
_SMALL_VALUE = 1e-6
# A single part may be off by this many times the tolerance for all gradients together, and by _MOST at most.
_GRADIENT, _OTHERS, _MOST = 100.0, 10.0, 0.5


@dataclass(frozen=True)
class Part:
    """Numbers that a window computed, the size below which they count as small, and their error limit."""

    numbers: Tensor
    small: Tensor
    limit: float
    # Whether they may be nothing but rounding, as gradients are that are zero in exact arithmetic.
    may_be_rounding: bool = False


Parts = dict[str, Part]


def window_parts(
    body: StepBody,
    grads: Gradients,
    after: Mapping[str, Tensor],
    before: Mapping[str, Tensor],
    values: Mapping[str, Tensor],
) -> Parts:
    """Return gradients, changes of buffers and sums, carried values, and named values with several numbers.

    `after` and `before` are states as returned by `compared_state`.
    """
    parts: Parts = {}
    tolerance = TOLERANCE[body.settings.precision]
    gradient_limit, limit = (min(_MOST, times * tolerance) for times in (_GRADIENT, _OTHERS))
    norms = [_norm(grad, body.device) for grad in grads if grad is not None]
    total = torch.stack(norms).norm() if norms else torch.zeros(())
    small = _SMALL_GRADIENT * tolerance * total
    for name, grad in zip(parameter_names(body), grads):
        if grad is not None:
            parts[f"the gradient of {name}"] = Part(grad, small, gradient_limit, may_be_rounding=True)
    for name, _ in body.model.named_buffers():
        was, now = before.get(f"buffer {name}"), after.get(f"buffer {name}")
        if was is not None and now is not None and was.shape == now.shape and _is_dense(now):
            change = _finite(widened(now) - widened(was))
            is_rounded = was.is_floating_point() or was.is_complex()
            rounding = 100 * torch.finfo(was.dtype).eps if is_rounded else 0.0
            small_change = rounding * _norm(_finite(widened(was)), body.device)
            parts[f"the buffer {name}"] = Part(change, small_change, limit)
    for value_names in body.means.totals:
        key = f"mean of {', '.join(value_names)}"
        if key in after:
            change = after[key] - before[key] if key in before else after[key].clone()
            for name, number in zip(value_names, change[1:]):
                label = "the loss" if name == "loss" else f"the value {name!r}"
                parts[label] = Part(_finite(number), _SMALL_VALUE * change[0].abs(), limit)
    carried = [] if body.undo.carried is None else body.undo.carried.named_tensors()
    compared = {f"the value {name!r}": value for name, value in values.items() if value.numel() > 1}
    compared |= {f"the {name}": after[name] for name in carried if name in after}
    for name, value in compared.items():
        if _is_dense(value) and (value.is_floating_point() or value.is_complex()):
            small_value = torch.tensor(_SMALL_VALUE * value.numel() ** 0.5, device=body.device)
            parts[name] = Part(_finite(widened(value)), small_value, limit)
    return parts


def parameter_names(body: StepBody) -> list[str]:
    """Return the dotted path of each parameter of a step; those outside of the model are numbered."""
    names = {id(parameter): name for name, parameter in body.model.named_parameters()}
    return [names.get(id(parameter), f"parameter {index}") for index, parameter in enumerate(body.parameters)]


def part_distances(one: Parts, other: Parts) -> dict[str, float]:
    """Return the distance of each part of one result from the other's, relative to its size.

    >>> half, whole = torch.tensor([3.0, 4.0]), torch.tensor([6.0, 8.0])
    >>> small = torch.tensor(1.0)
    >>> part_distances({"a": Part(whole, small, 0.1)}, {"a": Part(half, small, 0.1)})
    {'a': 0.5}
    """
    names = [name for name in one if name in other]
    if not names:
        return {}
    # Buffers may be on a different device.
    device = one[names[0]].small.device
    pairs = [(one[name], other[name].numbers) for name in names]
    apart = torch.stack([square_sum(part.numbers, theirs, device=device).sqrt() for part, theirs in pairs])
    size = torch.stack(
        [torch.maximum(_norm(part.numbers, device), part.small.to(device)) for part, _ in pairs]
    )
    return dict(zip(names, (apart / size.clamp_min(1e-30)).tolist()))


def _finite(numbers: Tensor) -> Tensor:
    """Replace numbers that are not finite by zero.

    >>> _finite(torch.tensor([1.0, torch.inf, torch.nan]))
    tensor([1., 0., 0.])
    """
    return torch.where(numbers.isfinite(), numbers, 0)


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested


def _norm(numbers: Tensor, device: torch.device) -> Tensor:
    """Return the norm of some numbers in double precision, on a device."""
    return square_sum(numbers, device=device).sqrt()
