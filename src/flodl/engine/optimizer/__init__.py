"""Prepares optimizers for capture, and contains a faster Adam."""
