"""Gradient clipping that never synchronizes with the device: results are returned as tensors."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

from flodl.core import ScheduleError
from flodl.core.formats import a_type
from flodl.core.usage.calls import ScheduleCallError, explain_calls

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Parameters: TypeAlias = "Tensor | Iterable[Tensor] | nn.Module"


_EXAMPLE = "Write {}(model.parameters(), 1.0)."
_OF_TORCH = {
    "norm_type": "Leave it out: the norm is the 2-norm.",
    "clip_value": "Write value=….",
    "max_value": "Write value=….",
    "error_if_nonfinite": "Leave it out, and check the norm that is returned.",
    "foreach": "Leave it out: all gradients are clipped at once.",
}


@explain_calls(ScheduleCallError, elsewhere=_OF_TORCH, example=_EXAMPLE.format("clip_grad_norm"))
def clip_grad_norm(parameters: Parameters, max_norm: float) -> Tensor:
    """Scale all gradients together to a global L2 norm of at most `max_norm`; return the original norm.

    If the norm exceeds the limit, the gradients are multiplied by max_norm/(norm + 1e-6). A NaN norm leaves
    them unchanged, and max_norm=inf only measures. Norms of half-precision gradients are computed in float32.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> clip_grad_norm([weight], 1.0), weight.grad
    (tensor(5.), tensor([0.6000, 0.8000]))
    """
    import torch

    with torch.no_grad():
        grads, norm, scale = _norm_and_scale(parameters, max_norm)
        for (device, _), group in _by_kind(grads).items():
            torch._foreach_mul_(group, scale.to(device))
        return norm


def norm_and_scale(parameters: Parameters, max_norm: float) -> tuple[Tensor, Tensor]:
    """Return the global L2 norm of all gradients, and what `clip_grad_norm` multiplies them by.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> norm_and_scale([weight], 1.0), weight.grad
    ((tensor(5.), tensor(0.2000)), tensor([3., 4.]))
    """
    import torch

    with torch.no_grad():
        return _norm_and_scale(parameters, max_norm)[1:]


def _norm_and_scale(parameters: Parameters, max_norm: float) -> tuple[list[Tensor], Tensor, Tensor]:
    import torch

    _check_limit("clip_grad_norm", "max_norm", max_norm)
    grads, home = _gradients("clip_grad_norm", parameters)
    if not grads:
        return grads, torch.zeros((), device=home), torch.ones((), device=home)
    norm: Tensor = torch.linalg.vector_norm(_norms(grads, 2.0, home))
    # A comparison with NaN is false, so gradients with a NaN norm stay unchanged.
    return grads, norm, torch.where(norm > max_norm, max_norm / (norm + 1e-6), 1.0)


@explain_calls(ScheduleCallError, elsewhere=_OF_TORCH, example=_EXAMPLE.format("clip_grad_value"))
def clip_grad_value(parameters: Parameters, value: float) -> Tensor:
    """Clamp every gradient element to [−value, value]; return the largest original magnitude.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([10.0, -5.0])
    >>> clip_grad_value([weight], 2.0), weight.grad
    (tensor(10.), tensor([ 2., -2.]))
    """
    import torch

    _check_limit("clip_grad_value", "value", value)
    with torch.no_grad():
        grads, home = _gradients("clip_grad_value", parameters)
        if not grads:
            return torch.zeros((), device=home)
        if any(grad.is_complex() for grad in grads):
            raise ScheduleError(
                "clip_grad_value: a gradient is complex, and complex numbers cannot be clamped. "
                "Use clip_grad_norm, which scales them."
            )
        largest = _norms(grads, math.inf, home).max()
        for group in _by_kind(grads).values():
            torch._foreach_clamp_min_(group, -value)
            torch._foreach_clamp_max_(group, value)
        return largest


def _check_limit(function: str, name: str, limit: Any) -> None:
    if isinstance(limit, Real) and float(limit) > 0:
        return
    raise ScheduleError(
        f"{function}: {name}={limit!r}, expected a number above 0. "
        "Pass a limit such as 1.0, or do not call it."
    )


def _gradients(function: str, parameters: Parameters) -> tuple[list[Tensor], torch.device]:
    """Return the gradients that have elements, and the device of the first parameter."""
    import torch

    given = _tensors(function, parameters)
    grads = [_dense(parameter, parameter.grad) for parameter in given if parameter.grad is not None]
    home = given[0].device if given else torch.device("cpu")
    return [grad for grad in grads if grad.numel() > 0], home


def _tensors(function: str, parameters: Parameters) -> list[Tensor]:
    import torch

    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.parameters()
    advice = "Pass the model itself or model.parameters()."
    if not isinstance(parameters, torch.Tensor | Iterable):
        raise ScheduleError(f"{function}: the parameters are {a_type(parameters)}. {advice}")
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    for index, parameter in enumerate(given):
        if not isinstance(parameter, torch.Tensor):
            raise ScheduleError(
                f"{function}: item {index} of the parameters is {a_type(parameter)}, not a tensor. {advice}"
            )
    return given


@explain_calls(ScheduleCallError, elsewhere=_OF_TORCH, example="Write gradient_values(parameters).")
def gradient_values(parameters: Parameters) -> list[Tensor]:
    """Return the existing gradients, and the stored values of sparse ones, for changing in place.

    >>> import torch
    >>> table = torch.nn.Embedding(9, 2, sparse=True)
    >>> table(torch.tensor([3, 3])).sum().backward()
    >>> gradient_values(table.parameters())
    [tensor([[2., 2.]])]
    """
    given = _tensors("gradient_values", parameters)
    return [_dense(parameter, parameter.grad) for parameter in given if parameter.grad is not None]


def _dense(parameter: Tensor, grad: Tensor) -> Tensor:
    if not grad.is_sparse:
        return grad
    # Before coalescing, an element may be stored in several parts, and their norm is not its norm.
    parameter.grad = grad.coalesce()
    return parameter.grad.values()


def _norms(grads: list[Tensor], order: float, home: torch.device) -> Tensor:
    """Return the norm of each gradient, as one vector on `home` in the widest dtype, at least float32."""
    import torch

    norms: list[Tensor] = []
    for (_, dtype), group in _by_kind(grads).items():
        half = dtype in (torch.float16, torch.bfloat16)
        # In float16, a norm overflows at 65504.
        norms.extend(torch._foreach_norm(group, order, dtype=torch.float32 if half else None))
    widest = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
    return torch.stack([norm.to(device=home, dtype=widest) for norm in norms])


def _by_kind(grads: list[Tensor]) -> dict[tuple[torch.device, torch.dtype], list[Tensor]]:
    """Group the gradients by device and dtype, as foreach calls need."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for grad in grads:
        kinds[grad.device, grad.dtype].append(grad)
    return kinds
