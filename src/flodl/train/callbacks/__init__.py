"""Hooks of the trainer and the standard callbacks."""
