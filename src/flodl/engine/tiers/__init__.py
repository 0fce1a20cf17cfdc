"""Decides which tier runs a step."""
