"""A discrete-event simulator: runs the real coordinator with simulated ranks, losses and a network."""

from .cluster import Churn, Network, SimulatedRank, cluster
from .ddp import simulate_ddp
from .outcome import Outcome
from .simulator import simulate

__all__ = ["Churn", "Network", "Outcome", "SimulatedRank", "cluster", "simulate", "simulate_ddp"]
