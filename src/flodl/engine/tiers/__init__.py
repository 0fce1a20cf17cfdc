"""The decision which tier runs a step."""
