"""Explains wrong calls and assignments: what was written, and what to write instead. Shortens tracebacks."""
