"""Models as graphs: a fluent builder, and an `nn.Module` that is straight-line code underneath."""

from .build.builder import FlowBuilder
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
]
