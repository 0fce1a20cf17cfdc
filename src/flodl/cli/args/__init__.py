"""A dataclass becomes a command line: typed values, help, environment fallback, a schema, completions."""

from .args import Args
from .declarations import argument, option

__all__ = ["Args", "argument", "option"]
