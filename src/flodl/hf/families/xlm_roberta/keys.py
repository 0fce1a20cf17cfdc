"""The names of XLM-RoBERTa's parameters in checkpoints: those of RoBERTa, prefix included."""

from ..roberta.keys import keys

__all__ = ["keys"]
