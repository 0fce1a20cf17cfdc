"""How many batches each rank trains between two meetings: `ElChe`, and the guards that limit its growth."""

from .elche import Cadence, ElChe
from .guards import GrowthGuard, Guard, LevelGuard, NoGuard, Verdict, make_guard
from .settings import CadenceSettings
from .shares import makespan, shares

__all__ = [
    "Cadence",
    "CadenceSettings",
    "ElChe",
    "GrowthGuard",
    "Guard",
    "LevelGuard",
    "NoGuard",
    "Verdict",
    "make_guard",
    "makespan",
    "shares",
]
