"""Models as graphs: a fluent builder, and an `nn.Module` that runs generated straight-line code."""

from .build import FlowBuilder
from .control import (
    ArgmaxSelector,
    FixedSelector,
    LearnedHalt,
    SigmoidRouter,
    SoftmaxRouter,
    ThresholdHalt,
    TopKRouter,
)
from .graph import Graph
from .hashing import structure_of
from .profile.layers import summary
from .run_state import (
    check_graph_state,
    graph_state,
    load_carried_values,
    load_graph_state,
    recorded,
    reset_carried_values,
    without_carried_values,
    without_records,
)
from .tree import is_kept_in_eval, set_kept_in_eval

__all__ = [
    "ArgmaxSelector",
    "FixedSelector",
    "FlowBuilder",
    "Graph",
    "LearnedHalt",
    "SigmoidRouter",
    "SoftmaxRouter",
    "ThresholdHalt",
    "TopKRouter",
    "check_graph_state",
    "graph_state",
    "is_kept_in_eval",
    "load_carried_values",
    "load_graph_state",
    "recorded",
    "reset_carried_values",
    "set_kept_in_eval",
    "structure_of",
    "summary",
    "without_carried_values",
    "without_records",
]
