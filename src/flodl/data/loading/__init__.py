"""The two backends of a loader, resident and streaming, and the workers behind the second."""
