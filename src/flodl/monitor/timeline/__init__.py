"""Where the time of a run goes: a fine-grained record, idle gaps, and a one-line verdict."""

from .gaps import Gap, idle_gaps
from .record import Mark, Record, Sample
from .timeline import Timeline
from .verdict import Verdict, verdict

__all__ = ["Gap", "Mark", "Record", "Sample", "Timeline", "Verdict", "idle_gaps", "verdict"]
