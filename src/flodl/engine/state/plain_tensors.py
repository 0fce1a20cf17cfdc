"""Tensors that modules store as plain attributes, neither parameters nor buffers: no state_dict has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class PlainTensor:
    """A floating-point tensor that is an attribute of a module, as it was at one moment."""

    path: str
    module: nn.Module
    name: str
    tensor: Tensor
    version: int

    @property
    def current(self) -> Any:
        """The value of the attribute now."""
        return self.module.__dict__.get(self.name)

    def assign(self, tensor: Tensor) -> None:
        """Replace the attribute."""
        self.module.__dict__[self.name] = tensor

    @property
    def is_changed(self) -> bool:
        """Whether another tensor took its place, or it was written to."""
        now = self.current
        is_other = now is not self.tensor and isinstance(now, Tensor) and now.shape == self.tensor.shape
        return is_other or (now is self.tensor and self.tensor._version != self.version)


def plain_tensors_of(model: nn.Module) -> list[PlainTensor]:
    """Return the plain tensors of the modules that the user wrote; one with `reset_state` starts afresh.

    >>> class Centered(nn.Module):
    ...     __module__ = "mine"
    ...
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.center = nn.Linear(2, 2).weight.detach()
    >>> [one.path for one in plain_tensors_of(nn.Sequential(Centered()))]
    ['0.center']
    """
    found = []
    for path, module in modules_of_user(model):
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.is_floating_point() and not value.is_inference():
                inner = f"{path}.{name}" if path else name
                found.append(PlainTensor(inner, module, name, value, value._version))
    return found


def modules_of_user(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that are not of a library, and that no save or `reset_state` takes care of."""
    for path, module in model.named_modules():
        library = type(module).__module__.partition(".")[0] in ("torch", "flodl", "torchmetrics")
        is_saved = type(module).get_extra_state is not nn.Module.get_extra_state
        if not (library or is_saved or hasattr(module, "reset_state")):
            yield path, module
