"""Time and memory for each node."""
