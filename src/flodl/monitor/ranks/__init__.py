"""Several ranks over time: what each one did, and a drawing of it."""

from .drawing import timeline_html, timeline_svg
from .history import RankHistory
from .slices import Slice, SyncMark, thin, thin_syncs
from .text import coverage as coverage_text
from .text import num_bytes as size_text

__all__ = [
    "RankHistory",
    "Slice",
    "SyncMark",
    "coverage_text",
    "size_text",
    "thin",
    "thin_syncs",
    "timeline_html",
    "timeline_svg",
]
