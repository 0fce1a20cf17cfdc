"""A run as files for other programs: one HTML page, a CSV table, a text log, the timeline of its ranks."""

from .comparison import comparison_json
from .html import archive, live_page, save_html
from .rank_timeline import save_rank_timeline
from .tables import csv_text, export_csv, log_text, write_log

__all__ = [
    "archive",
    "comparison_json",
    "csv_text",
    "export_csv",
    "live_page",
    "log_text",
    "save_html",
    "save_rank_timeline",
    "write_log",
]
