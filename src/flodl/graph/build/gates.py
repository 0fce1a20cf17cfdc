"""Choose the kind of gate that a call of `gate` describes."""

from __future__ import annotations

from collections.abc import Sequence

from flodl.core import BuildError

from ..control import Gate, TopKGate
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
    return TopKGate(own, experts, top_k=top_k, masked=masked)
