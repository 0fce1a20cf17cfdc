"""Metrics of a training run: recorded without synchronizing, read as trends, exported to files."""

from .carried_values import CarriedValues, mark_overwritten, unshared
from .export import export_csv, plot_html, to_csv, to_log, write_log
from .last_values import LastValues, RecordedValues
from .metrics import Book
from .plot import page
from .trend import Trend, TrendGroup, unknown_metric

__all__ = [
    "Book",
    "CarriedValues",
    "LastValues",
    "RecordedValues",
    "Trend",
    "TrendGroup",
    "export_csv",
    "mark_overwritten",
    "page",
    "plot_html",
    "to_csv",
    "to_log",
    "unknown_metric",
    "unshared",
    "write_log",
]
