"""`Control`, the base class of loops, gates, switches and maps, and the tensor functions they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flodl.core import GraphError, LoopError, RouteError

from ..plan.error_path import path_of_error
from ..plan.memory import tensors
from ..plan.overwriting import Versions
from ..plan.signature import Accepts
from ..plan.spec import Spec

Target = Callable[..., Any]


class Control(nn.Module, ABC):
    """A node made of named parts; the names are path segments and state-dict prefixes."""

    kind: Literal["loop", "gate", "switch", "map"]
    # Set by a graph during a call in which it checks for writes in place.
    is_watched = False

    @abstractmethod
    def part_names(self) -> tuple[str, ...]:
        """Return the names of the parts, in drawing order."""

    def parts(self) -> dict[str, Target]:
        """Return the parts by name, both modules and plain functions."""
        return {name: getattr(self, name) for name in self.part_names()}

    def accepted_refs(self) -> Accepts:
        """Return the references that `using` can bind to the node."""
        return Accepts()

    def parts_read_again(self) -> dict[str, str]:
        """Return the parts after which the node reads its stream again, each with what reads it."""
        return {}

    def versions(self, value: Any) -> Versions | None:
        """Return the versions of a value that is read again, in a call that is checked."""
        return Versions(value) if self.is_watched else None

    @abstractmethod
    def describe(self) -> str:
        """Return a short description, which enters pictures and the structural hash."""

    def extra_repr(self) -> str:
        return self.describe()


def explain_tracing(error: Exception, node: nn.Module) -> GraphError | None:
    """Return a clearer error if torch cannot trace the decision of a node that has a masked variant."""
    is_own = type(error).__name__ == "GuardOnDataDependentSymNode" and not path_of_error(error)[0]
    if not is_own or getattr(node, "masked", True):
        return None
    is_switch = getattr(node, "kind", None) == "switch"
    what, method = ("index", "switch") if is_switch else ("condition", "while_cond or until_cond")
    return (RouteError if is_switch else LoopError)(
        f"torch cannot trace this {node.kind}, because Python reads its {what}. Pass masked=True to {method}."
    )


def carried_tag(part: Any) -> str | None:
    """Return a tag that a part carries from call to call; None if there is none.

    Graphs count, and sequences and control nodes of graphs. Another module may reset the state itself.
    """
    if isinstance(spec := getattr(part, "spec", None), Spec):
        for node in spec.nodes:
            if node.carries is not None:
                return node.carries
    elif not isinstance(part, nn.Sequential | Control):
        return None
    return next(filter(None, map(carried_tag, part.children())), None)


def batch_size(value: Any) -> int | None:
    """Return the size of the first dimension of the first tensor in a nested value, if it has one."""
    for leaf in tensors(value):
        return leaf.shape[0] if leaf.dim() > 0 else None
    return None


def one_or_per_sample(value: Tensor, stream: Any) -> Tensor | None:
    """Reshape a decision to a scalar for the batch or to one value per sample; return None if neither fits.

    >>> one_or_per_sample(torch.zeros(4, 1), torch.zeros(4, 8)).shape
    torch.Size([4])
    """
    if value.numel() == 1:
        return value.reshape(())
    batch = batch_size(stream)
    return value.reshape(batch) if value.numel() == batch and value.shape[0] == batch else None


def on_meta(value: Any) -> bool:
    """Return whether a value is on the meta device."""
    return any(leaf.is_meta for leaf in tensors(value))


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """View one value per sample so that it broadcasts over the other dimensions of `like`."""
    if values.dim() == 0:
        return values
    return values.view(values.shape[0], *[1] * (like.dim() - 1))


def combine(weights: Tensor, outputs: list[Tensor]) -> Tensor:
    """Sum the outputs, each scaled by its column of `weights`, whose other dimensions lead the outputs'.

    >>> combine(torch.tensor([[0.5, 0.5]]), [torch.tensor([[4.0, 8.0]]), torch.tensor([[6.0, 12.0]])])
    tensor([[ 5., 10.]])
    """
    lead = weights.dim() - 1
    stacked = torch.stack(outputs, dim=lead)
    shaped = weights.view(*weights.shape, *[1] * (stacked.dim() - lead - 1))
    return (stacked * shaped).sum(dim=lead)
