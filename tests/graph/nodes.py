"""Small nodes whose results can be computed by hand."""

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


def double(x: Tensor) -> Tensor:
    return x * 2


def triple(x: Tensor) -> Tensor:
    return x * 3


class Double(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Triple(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 3


class Shift(nn.Module):
    """Add a learned offset."""

    def __init__(self, width: int, value: float = 0.0) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.full((width,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.offset


class Total(nn.Module):
    """Add every reference to the stream."""

    def forward(self, x: Tensor, **refs: Tensor | None) -> Tensor:
        for ref in refs.values():
            x = x if ref is None else x + ref
        return x


class Blend(nn.Module):
    """Add the reference `ctx`, which is required."""

    def forward(self, x: Tensor, ctx: Tensor) -> Tensor:
        return x + ctx


class Remember(nn.Module):
    """Add the carried `memory`, if there is one."""

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        return x if memory is None else x + memory


class Counter(nn.Module):
    """Count the calls of each method that a graph forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        return x

    def reset_state(self) -> None:
        self.calls.append("reset_state")

    def detach_state(self) -> None:
        self.calls.append("detach_state")


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("broken on purpose")


class Equal(nn.Module):
    """Weight two experts equally."""

    def forward(self, x: Tensor) -> Tensor:
        return x.new_full((*x.shape[:-1], 2), 0.5)


def identity_linear(width: int, bias: float = 0.0) -> nn.Linear:
    linear = nn.Linear(width, width)
    with torch.no_grad():
        linear.weight.copy_(torch.eye(width))
        linear.bias.fill_(bias)
    return linear


class NoHostReads(TorchDispatchMode):
    """Fail if a tensor's value is read on the host, which would synchronize with a device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "a value was read on the host"
        return func(*args, **(kwargs or {}))
