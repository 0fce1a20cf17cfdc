"""Rivals of the comparison on throttled ranks."""
