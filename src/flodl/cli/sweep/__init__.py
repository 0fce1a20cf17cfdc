"""Sweeps: run a command many times with different values, and keep the results on disk."""
