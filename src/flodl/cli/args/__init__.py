"""Command lines from dataclasses: typed values, help, environment fallback, JSON schema, completion."""

from .args import Args
from .declarations import argument, option

__all__ = ["Args", "argument", "option"]
