"""Data for training."""

from .digits import digits

__all__ = ["digits"]
