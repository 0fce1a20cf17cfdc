"""Averaging the weights of several ranks: `Reducer` computes the next version of the consensus."""

from .backends import card_of
from .errors import ReductionFailed
from .flat_state import FlatState
from .groups import Groups
from .links import Link
from .outer import Mean, Nesterov, OuterOptimizer, SlowMomentum
from .reducer import Reducer
from .rounds import Reduction
from .store import cancel, connect_store, gradient_store, host_store

__all__ = [
    "FlatState",
    "Groups",
    "Link",
    "Mean",
    "Nesterov",
    "OuterOptimizer",
    "Reducer",
    "Reduction",
    "ReductionFailed",
    "SlowMomentum",
    "cancel",
    "card_of",
    "connect_store",
    "gradient_store",
    "host_store",
]
