"""Evaluation without side effects on training."""
