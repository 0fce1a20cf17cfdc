"""Signals, non-finite losses and rollback."""
