"""Choose the kind of gate that a call of `gate` describes."""

from __future__ import annotations

from collections.abc import Sequence

from flodl.core import BuildError, RouteError

from ..control import Gate, TopKGate, TopKRouter
from ..control.top_k import GivenWeights
from .draft import Target


def make_gate(
    router: Target, experts: Sequence[Target], top_k: int | None, masked: bool, *, is_named: bool
) -> Gate:
    """Return the gate; if the router is a node with a name, the gate reads that node's value."""
    if top_k is None and masked:
        raise BuildError("gate got masked=True without top_k: it runs every expert anyway. Remove masked.")
    own: Target = GivenWeights(getattr(router, "num_choices", len(experts))) if is_named else router
    if top_k is None:
        return Gate(own, experts)
    if isinstance(router, TopKRouter) and router.k < top_k:
        raise RouteError(
            f"gate got top_k={top_k} with TopKRouter(…, k={router.k}), which gives only {router.k} of them a "
            "weight above 0. Use SoftmaxRouter: top_k selects the experts."
        )
    return TopKGate(own, experts, top_k=top_k, masked=masked)
