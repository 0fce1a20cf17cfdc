"""The skill for coding assistants: its files, the assistants, and where they look for skills."""

from .content import NAME, description, read_files
from .install import Folder
from .tools import TOOLS, Tool, detected

__all__ = ["NAME", "TOOLS", "Folder", "Tool", "description", "detected", "read_files"]
