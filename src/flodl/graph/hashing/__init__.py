"""Structural and weight hashes of a graph."""

from .hashes import structure_of

__all__ = ["structure_of"]
