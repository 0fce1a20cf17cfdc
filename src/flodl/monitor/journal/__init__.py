"""The journal: every event of a run, in one append-only file that console, page and exports are views of."""

from .lines import FILE, Entry
from .reader import Reader, Table, journal_file, read
from .writer import Journal

__all__ = ["FILE", "Entry", "Journal", "Reader", "Table", "journal_file", "read"]
