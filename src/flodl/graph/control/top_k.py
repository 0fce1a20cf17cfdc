"""Gates that use the best experts only: each expert runs on the rows that are routed to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flodl.core import RouteError, StateError
from flodl.core.formats import a_type
from flodl.core.integers import as_integer, is_index
from flodl.core.logits import looks_like_logits

from ..plan.shapes import differ
from .control import Target, carried_tag, on_meta
from .gate import Gate


class TopKGate(Gate):
    """Run the `top_k` experts with the largest weights, for each sample or step.

    The weights of several experts are divided by their sum. A single expert keeps its weight: divided by
    itself, it would always be 1, and the router would have no gradient.

    An expert gets the rows that are routed to it, `[rows, features…]`, so it must treat each row on its own.
    With `masked`, and while torch traces the model, every expert runs on the whole stream and the others get
    the weight zero: no host sync, so it can be captured.
    """

    def __init__(
        self, router: Target, experts: Sequence[Target], *, top_k: int, masked: bool = False
    ) -> None:
        super().__init__(router, experts)
        if not is_index(top_k, at_least=1) or top_k > self.num_experts:
            raise RouteError(
                f"gate got top_k={top_k!r:.60} for {self.num_experts} experts. "
                f"Use top_k from 1 to {self.num_experts}."
            )
        self.top_k: int = as_integer(top_k)
        self.masked = masked
        for position, expert in enumerate(experts):
            if not masked and (tag := carried_tag(expert)) is not None:
                raise _mixed_state(tag, position)

    def describe(self) -> str:
        return f"{self.top_k} of {self.num_experts} experts" + (", masked" if self.masked else "")

    def mix(self, weights: Tensor, stream: Any) -> Tensor:
        if self.is_watched and (found := looks_like_logits(weights, wait=True)) is not None:
            raise RouteError(
                f"the router returned {found}: these are logits, and top_k needs weights that are not "
                "negative, because it divides them by their sum. End the router with softmax(dim=-1), or use "
                f"SoftmaxRouter(width, {self.num_experts}).",
                path="router",
            )
        best, index = weights.topk(self.top_k, dim=-1)
        if self.top_k > 1:
            best = best / best.sum(dim=-1, keepdim=True)
        if self.masked or torch.compiler.is_compiling() or on_meta(stream):
            return super().mix(torch.zeros_like(weights).scatter(-1, index, best), stream)
        return self._dispatch(best, index, stream)

    def _dispatch(self, best: Tensor, index: Tensor, stream: Any) -> Tensor:
        """Run each expert on its rows, and add up the weighted results."""
        lead = index.shape[:-1]
        if not isinstance(stream, Tensor):
            raise RouteError(
                f"top_k needs a tensor stream, not {a_type(stream)}. Pass masked=True, which runs "
                "every expert on the whole stream."
            )
        if stream.dim() < len(lead) or differ(lead, stream.shape[: len(lead)]):
            raise RouteError(
                f"the router returned weights of shape {(*lead, self.num_experts)} for a stream of shape "
                f"{tuple(stream.shape)}. With top_k, every dimension before the last must match the "
                "stream's: one weight per expert for each sample, or for each step.",
                path="router",
            )
        rows = stream.reshape(-1, *stream.shape[len(lead) :])
        best, index = best.reshape(-1, self.top_k), index.reshape(-1, self.top_k)
        result: Tensor | None = None
        first: Tensor | None = None
        for position, name in enumerate(self._expert_names):
            # An expert without rows runs too: its gradients are zero, not None, as if its weight were zero.
            chosen, slot = (index == position).nonzero(as_tuple=True)
            output = self._run(name, rows.index_select(0, chosen))
            first = output if first is None else first
            _check_rows(output, len(chosen), first, name)
            weight = best[chosen, slot].reshape(-1, *[1] * (output.dim() - 1))
            weighted = weight * output
            if result is None:
                result = weighted.new_zeros(len(rows), *output.shape[1:])
            result = result.index_add(0, chosen, weighted)
        assert result is not None
        return result.reshape(*lead, *result.shape[1:])


def _check_rows(output: Tensor, num_rows: int, first: Tensor, name: str) -> None:
    if output.dim() == 0 or output.shape[0] != num_rows:
        raise RouteError(
            f"the expert returned shape {tuple(output.shape)} for {num_rows} rows. With top_k, an expert "
            "gets the rows that are routed to it, and must return one row for each.",
            path=name,
        )
    if output.shape[1:] != first.shape[1:] or output.dtype != first.dtype:
        raise RouteError(
            f"the expert returned rows of shape {tuple(output.shape[1:])} {output.dtype}, the first expert "
            f"{tuple(first.shape[1:])} {first.dtype}. All experts of a gate must return the same shape.",
            path=name,
        )


def _mixed_state(tag: str, position: int) -> StateError:
    return StateError(
        f"the expert carries {tag!r} from call to call. With top_k, it gets different samples in every call, "
        "and would continue the state of other samples. Pass masked=True, which runs every expert on the "
        "whole batch.",
        path=f"expert_{position}",
    )


@dataclass(frozen=True)
class GivenWeights:
    """The router of a gate whose weights another node computes.

    >>> GivenWeights(num_choices=2)("stream", weights=3)
    3
    """

    num_choices: int

    def __call__(self, stream: Any, /, *, weights: Any) -> Any:
        return weights
