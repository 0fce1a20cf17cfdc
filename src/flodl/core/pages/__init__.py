"""Self-contained HTML pages: their common look, and how they are assembled into one file."""

from .page import Page, embedded

__all__ = ["Page", "embedded"]
