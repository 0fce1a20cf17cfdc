"""Benchmarks in rows: the rivals of a row take turns, each in its own process, within a time limit."""
