"""A run in the terminal: one line for each epoch, a bar within it where somebody watches."""

from .console import Console

__all__ = ["Console"]
