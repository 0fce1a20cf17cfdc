"""Nodes that decide what runs: loops, gates, switches and maps, with their routers and halts."""

from .gate import Gate
from .halting import LearnedHalt, ThresholdHalt
from .loop import Loop
from .map import Map
from .routing import ArgmaxSelector, FixedSelector, SigmoidRouter, SoftmaxRouter, TopKRouter
from .switch import Switch
from .top_k import TopKGate

__all__ = [
    "ArgmaxSelector",
    "FixedSelector",
    "Gate",
    "LearnedHalt",
    "Loop",
    "Map",
    "SigmoidRouter",
    "SoftmaxRouter",
    "Switch",
    "ThresholdHalt",
    "TopKGate",
    "TopKRouter",
]
