"""Text in, padded tensors out: tokenization and batches of texts of similar length."""

from .batching import plan_batches
from .tokenizer import Tokenizer

__all__ = ["Tokenizer", "plan_batches"]
