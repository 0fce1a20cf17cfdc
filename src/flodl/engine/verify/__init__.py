"""Comparison of a candidate tier with eager."""
