"""Named tensors on disk: written whole or not at all, loaded all or none."""

from .file import load_checkpoint, read_checkpoint, save_checkpoint
from .report import LoadReport

__all__ = ["LoadReport", "load_checkpoint", "read_checkpoint", "save_checkpoint"]
