"""Training data from raw text: tokenized once, kept compactly, made into padded or packed batches."""

from .dataset import TextDataset

__all__ = ["TextDataset"]
