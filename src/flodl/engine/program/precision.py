"""The precision of a step: fp32, tf32, or mixed with bf16 or fp16, without a host sync."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ..device.torch_flags import matmul_tf32
from ..settings import Precision


def computing_in(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which forward and loss run."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    if precision == "fp16":
        return torch.autocast(device.type, dtype=torch.float16)
    if precision == "tf32" and device.type == "cuda":
        return matmul_tf32(allowed=True)
    return nullcontext()


class LossScaler:
    """Loss scaling for fp16 on the device: the scale grows after good updates and halves after a bad one.

    >>> scaler = LossScaler(torch.device("cpu"))
    >>> scaler.found_inf.fill_(1.0), scaler.update(), scaler.scale
    (tensor(1.), None, tensor(32768.))
    """

    def __init__(self, device: torch.device, *, initial: float = 65536.0, interval: int = 2000) -> None:
        self.scale = torch.tensor(initial, dtype=torch.float32, device=device)
        self.clean_updates = torch.zeros((), dtype=torch.int32, device=device)
        self.found_inf = torch.zeros((), dtype=torch.float32, device=device)
        self.interval = interval

    def unscale(self, grads: Sequence[Tensor]) -> None:
        """Divide the gradients by the scale and flag on the device whether one is not finite."""
        self.found_inf.zero_()
        inverse = self.scale.double().reciprocal().float()
        by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for grad in grads:
            by_kind.setdefault((grad.device, grad.dtype), []).append(grad)
        for group in by_kind.values():
            torch._amp_foreach_non_finite_check_and_unscale_(group, self.found_inf, inverse)

    def update(self) -> None:
        """Update the scale from what `unscale` found."""
        torch._amp_update_scale_(self.scale, self.clean_updates, self.found_inf, 2.0, 0.5, self.interval)

    def state(self) -> list[Tensor]:
        """Return the tensors that a step changes."""
        return [self.scale, self.clean_updates, self.found_inf]
