"""Packed batches: the tokens of all sentences in one row of fixed length, without padding between them."""

from .pack import fill_row, pack, pack_flat, pack_values, unpack
from .rows import to_rows
from .slot import Slot

__all__ = ["Slot", "fill_row", "pack", "pack_flat", "pack_values", "to_rows", "unpack"]
