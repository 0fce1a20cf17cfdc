"""Structural and weight hashes of a graph."""
