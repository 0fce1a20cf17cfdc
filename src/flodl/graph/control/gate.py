"""Gates: run every expert and sum the outputs, weighted by a router."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

from flodl.core import RouteError
from flodl.core.formats import a_type

from ..plan.error_path import details_of_part, prepend_path
from ..plan.shapes import differ
from ..plan.signature import Accepts, accepts
from .control import Control, Target, combine


class Gate(Control):
    """Sum the experts' outputs, weighted by the router; references go to the router.

    The router returns `[..., experts]`. Its leading dimensions must match those of the experts' outputs:
    `[batch, experts]` weights whole samples of any shape, `[batch, time, experts]` time steps. Weights are
    not repeated for the batch; later dimensions may have size 1.
    """

    kind = "gate"

    def __init__(self, router: Target, experts: Sequence[Target]) -> None:
        super().__init__()
        self.router = router
        self.num_experts = len(experts)
        self._expert_names = tuple(f"expert_{position}" for position in range(len(experts)))
        for name, expert in zip(self._expert_names, experts):
            setattr(self, name, expert)
        known = getattr(router, "num_choices", self.num_experts)
        if known != self.num_experts:
            raise _wrong_width(known, self.num_experts)

    def part_names(self) -> tuple[str, ...]:
        return ("router", *self._expert_names)

    def accepted_refs(self) -> Accepts:
        return accepts(self.router)

    def describe(self) -> str:
        return f"{self.num_experts} experts"

    def parts_read_again(self) -> dict[str, str]:
        return {name: repr(following) for name, following in pairwise(self.part_names())}

    def forward(self, stream: Any, /, **refs: Any) -> Tensor:
        before = self.versions(stream)
        try:
            weights = self.router(stream, **refs)
        except Exception as error:
            prepend_path(error, "router", details_of_part(error, self.router, stream))
            raise
        if before is not None:
            before.check("router", "the experts")
        if not isinstance(weights, Tensor) or weights.dim() == 0:
            raise RouteError(
                f"the router returned {_kind_of(weights)}. Return a tensor with one weight per expert, last."
            )
        if weights.shape[-1] != self.num_experts:
            raise _wrong_width(weights.shape[-1], self.num_experts)
        return self.mix(weights, stream)

    def mix(self, weights: Tensor, stream: Any) -> Tensor:
        """Run the experts and sum their outputs, weighted."""
        outputs = [self._run(name, stream) for name in self._expert_names]
        _check_shapes(weights, outputs)
        _check_batch(weights, outputs[0], stream)
        return combine(weights, outputs)

    def _run(self, name: str, stream: Any) -> Tensor:
        before = self.versions(stream)
        try:
            output = getattr(self, name)(stream)
        except Exception as error:
            prepend_path(error, name, details_of_part(error, getattr(self, name), stream))
            raise
        if before is not None and name != self._expert_names[-1]:
            before.check(name, "the next expert")
        if not isinstance(output, Tensor):
            raise RouteError(
                f"the expert returned {_kind_of(output)}. The experts of a gate must return tensors.",
                path=name,
            )
        return output


def _kind_of(value: Any) -> str:
    return "a scalar" if isinstance(value, Tensor) else f"{a_type(value)}"


def _wrong_width(width: int, num_experts: int) -> RouteError:
    fix = "add an expert" if width > num_experts else "remove an expert"
    return RouteError(
        f"the router gives {width} weights for {num_experts} experts. "
        f"Give the router {num_experts} outputs or {fix}."
    )


def _check_shapes(weights: Tensor, outputs: list[Tensor]) -> None:
    first = outputs[0]
    for position, output in enumerate(outputs):
        if output.shape != first.shape:
            raise RouteError(
                f"the expert returned shape {tuple(output.shape)}, the first expert {tuple(first.shape)}. "
                "All experts of a gate must return the same shape.",
                path=f"expert_{position}",
            )
    lead = weights.dim() - 1
    fits = first.dim() >= lead and all(
        have in (1, want) for have, want in zip(weights.shape[:-1], first.shape[:lead])
    )
    if not fits:
        raise RouteError(
            f"the router returned weights of shape {tuple(weights.shape)} for experts of shape "
            f"{tuple(first.shape)}. Every dimension before the last must match the experts' shape: "
            "one weight per expert for each sample, or for each step."
        )


def _check_batch(weights: Tensor, output: Tensor, stream: Any) -> None:
    """Raise if the samples of a batch would share one row of weights."""
    is_batch = output.dim() > 1 or (isinstance(stream, Tensor) and stream.dim() > 1)
    lead = weights.shape[:-1] or (1,)
    if is_batch and output.dim() > 0 and differ(lead[:1], output.shape[:1]):
        raise RouteError(
            f"the router returned weights of shape {tuple(weights.shape)} for a batch of {output.shape[0]}: "
            f"all samples would share them. Return one row per sample, {_per_sample_shape(weights, output)}. "
            "If they should share them, write weights.expand(len(x), -1).",
            path="router",
        )


def _per_sample_shape(weights: Tensor, output: Tensor) -> tuple[int, ...]:
    return (output.shape[0], *weights.shape[1:]) if weights.dim() > 1 else (output.shape[0], *weights.shape)
