"""Optimizers made ready for capture, and a faster Adam."""
