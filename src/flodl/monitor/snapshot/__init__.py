"""The state of a run as plain data, read from its journal: what the live page, archives and exports show."""

from .comparison import Focus, compare
from .history import epoch_record, epoch_with_id, merge_history
from .rank_work import rank_work
from .series import last_step, latest_progress, metric_series
from .snapshot import event_record, graph_svg, snapshot
from .starts import starts_of
from .status import Run, status
from .summary import summary, unreadable_summary

__all__ = [
    "Focus",
    "Run",
    "compare",
    "epoch_record",
    "epoch_with_id",
    "event_record",
    "graph_svg",
    "last_step",
    "latest_progress",
    "merge_history",
    "metric_series",
    "rank_work",
    "snapshot",
    "starts_of",
    "status",
    "summary",
    "unreadable_summary",
]
