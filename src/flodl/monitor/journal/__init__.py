"""The journal: every event of a run in one append-only file; console, page and exports are views of it."""

from .codec import FILE, Entry, decode, dumps, encode
from .earlier_run import set_aside_earlier_run
from .folders import find_runs
from .lines import Line, damaged_lines, describe_damage, read_lines
from .reader import Reader, Table, journal_file, read
from .writer import Journal

__all__ = [
    "FILE",
    "Entry",
    "Journal",
    "Line",
    "Reader",
    "Table",
    "damaged_lines",
    "decode",
    "describe_damage",
    "dumps",
    "encode",
    "find_runs",
    "journal_file",
    "read",
    "read_lines",
    "set_aside_earlier_run",
]
