"""The journal: every event of a run in one append-only file; console, page and exports are views of it."""

from .codec import FILE, Entry, complete_lines, decode, dumps, encode
from .reader import Reader, Table, journal_file, read
from .writer import Journal

__all__ = [
    "FILE",
    "Entry",
    "Journal",
    "Reader",
    "Table",
    "complete_lines",
    "decode",
    "dumps",
    "encode",
    "journal_file",
    "read",
]
