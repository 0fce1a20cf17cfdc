"""Averaging the weights of several ranks: `Reducer` computes the next version of the consensus."""

from .errors import ReductionFailed
from .flat_state import FlatState
from .outer import Mean, Nesterov, OuterOptimizer, SlowMomentum
from .reducer import Reducer
from .rounds import Reduction
from .store import cancel, connect_store, host_store

__all__ = [
    "FlatState",
    "Mean",
    "Nesterov",
    "OuterOptimizer",
    "Reducer",
    "Reduction",
    "ReductionFailed",
    "SlowMomentum",
    "cancel",
    "connect_store",
    "host_store",
]
