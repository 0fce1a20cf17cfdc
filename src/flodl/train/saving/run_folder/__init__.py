"""The run directory: its files, its lock, and the bundle in it that a run resumes from."""
