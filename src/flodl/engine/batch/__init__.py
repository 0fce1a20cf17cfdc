"""Batches of any nested structure: signature, tensors, number of samples."""
