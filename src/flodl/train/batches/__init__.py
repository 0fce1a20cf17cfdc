"""Batches for training: loaders, cursor, sample counts."""
