"""A dataclass becomes a command line: typed values, help, environment fallback, a schema, completions."""

from .command import Args
from .fields import argument, option

__all__ = ["Args", "argument", "option"]
