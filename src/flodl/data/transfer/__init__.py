"""Batches on their way to a device: copied through pinned memory, prepared on a side stream."""
