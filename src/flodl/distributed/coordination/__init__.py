"""Who is in a run, when ranks meet, and what counts: `Coordinator` turns events into commands."""

from .commands import (
    Command,
    Commit,
    Evict,
    Finished,
    Plan,
    Rebuild,
    Reduce,
    Refuse,
    Release,
    SavePoint,
    Stop,
)
from .coordinator import Coordinator
from .events import Arrived, Event, Failed, Joined, Leaving, Lost, Reduced, Tick
from .journal import from_journal, to_journal
from .meeting import Meeting, Roll
from .membership import Generation, Membership
from .position import Position
from .run_state import NO_HOLDER
from .settings import CoordinatorSettings, MeetingSettings, SuspicionSettings

__all__ = [
    "NO_HOLDER",
    "Arrived",
    "Command",
    "Commit",
    "Coordinator",
    "CoordinatorSettings",
    "Event",
    "Evict",
    "Failed",
    "Finished",
    "Generation",
    "Joined",
    "Leaving",
    "Lost",
    "Meeting",
    "MeetingSettings",
    "Membership",
    "Plan",
    "Position",
    "Rebuild",
    "Reduce",
    "Reduced",
    "Refuse",
    "Release",
    "Roll",
    "SavePoint",
    "Stop",
    "SuspicionSettings",
    "Tick",
    "from_journal",
    "to_journal",
]
