"""A run in the terminal: one line per epoch, and a progress bar within the epoch."""

from .console import Console

__all__ = ["Console"]
