"""Pages that need nothing but a browser: how they look, and how they are put into one file."""

from .page import Page, embedded

__all__ = ["Page", "embedded"]
