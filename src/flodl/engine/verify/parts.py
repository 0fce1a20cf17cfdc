"""What a window did, part by part: to each gradient, to each buffer, to the loss and the named values.

One norm over all gradients hides those of a small part, and says nothing of what a step keeps or shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..device.tensors import widened
from ..program.program import StepBody
from .gradients import TOLERANCE, Gradients

# So small a part of what all gradients may be off is mostly rounding: in float32, the gradient of a bias
# before a norm, which has none in truth, was up to 3e-6 of all gradients together.
_SMALL_GRADIENT = 0.1
# A value that was added to a mean is not told apart from another one any closer.
_SMALL_VALUE = 1e-6
# How many times as far as all gradients together one part may be off, and in any case.
_GRADIENT, _OTHERS, _MOST = 100.0, 10.0, 0.5


@dataclass(frozen=True)
class Part:
    """Numbers that a window made, what counts as small among them, and how far they may be off."""

    numbers: Tensor
    small: Tensor
    limit: float
    # Whether there may be nothing in them but rounding, as in gradients that are zero in truth.
    may_be_rounding: bool = False


Parts = dict[str, Part]


def window_parts(
    body: StepBody,
    grads: Gradients,
    after: Mapping[str, Tensor],
    before: Mapping[str, Tensor],
    values: Mapping[str, Tensor],
) -> Parts:
    """Give the gradients, how buffers and sums differ from before, and named values of several numbers.

    States are those of `live_state`.
    """
    found: Parts = {}
    tolerance = TOLERANCE[body.settings.precision]
    gradient_limit, limit = (min(_MOST, times * tolerance) for times in (_GRADIENT, _OTHERS))
    names = {id(parameter): name for name, parameter in body.model.named_parameters()}
    sizes = [_size(grad, body.device) for grad in grads if grad is not None]
    total = torch.stack(sizes).norm() if sizes else torch.zeros(())
    small = _SMALL_GRADIENT * tolerance * total
    for position, (parameter, grad) in enumerate(zip(body.parameters, grads)):
        name = names.get(id(parameter), f"parameter {position}")
        if grad is not None:
            found[f"the gradient of {name}"] = Part(grad, small, gradient_limit, may_be_rounding=True)
    for name, _ in body.model.named_buffers():
        was, now = before.get(f"buffer {name}"), after.get(f"buffer {name}")
        if was is not None and now is not None and was.shape == now.shape and _is_plain(now):
            change = _finite(widened(now) - widened(was))
            is_rounded = was.is_floating_point() or was.is_complex()
            rounding = 100 * torch.finfo(was.dtype).eps if is_rounded else 0.0
            small_change = rounding * _size(_finite(widened(was)), body.device)
            found[f"the buffer {name}"] = Part(change, small_change, limit)
    for given in body.tally.totals:
        key = f"mean of {', '.join(given)}"
        if key in after:
            change = after[key] - before[key] if key in before else after[key].clone()
            for name, number in zip(given, change[1:]):
                told = "the loss" if name == "loss" else f"the value {name!r}"
                found[told] = Part(_finite(number), _SMALL_VALUE * change[0].abs(), limit)
    for name, value in values.items():
        if value.numel() > 1 and _is_plain(value) and (value.is_floating_point() or value.is_complex()):
            small_value = torch.tensor(_SMALL_VALUE * value.numel() ** 0.5, device=body.device)
            found[f"the value {name!r}"] = Part(_finite(widened(value)), small_value, limit)
    return found


def part_distances(one: Parts, other: Parts) -> dict[str, float]:
    """Give how far each part of one is from that of the other, relative to its size.

    >>> half, whole = torch.tensor([3.0, 4.0]), torch.tensor([6.0, 8.0])
    >>> small = torch.tensor(1.0)
    >>> part_distances({"a": Part(whole, small, 0.1)}, {"a": Part(half, small, 0.1)})
    {'a': 0.5}
    """
    names = [name for name in one if name in other]
    if not names:
        return {}
    # Buffers may lie elsewhere than the rest.
    device = one[names[0]].small.device
    parts = [(one[name], other[name].numbers) for name in names]
    apart = torch.stack([_size(widened(part.numbers) - widened(theirs), device) for part, theirs in parts])
    size = torch.stack(
        [torch.maximum(_size(part.numbers, device), part.small.to(device)) for part, _ in parts]
    )
    return dict(zip(names, (apart / size.clamp_min(1e-30)).tolist()))


def _finite(numbers: Tensor) -> Tensor:
    """Leave out what is not finite, which no size can be told of.

    >>> _finite(torch.tensor([1.0, torch.inf, torch.nan]))
    tensor([1., 0., 0.])
    """
    return torch.where(numbers.isfinite(), numbers, 0)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested


def _size(numbers: Tensor, device: torch.device) -> Tensor:
    """Give the norm of some numbers in double precision, on a device."""
    return widened(numbers).abs().square().sum().sqrt().to(device)
