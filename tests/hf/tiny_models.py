"""Tiny models with random weights and a tokenizer, made without transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flodl.hf import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    Tokenizer,
)

from .small_tokenizers import byte_level, word_piece

SIZES = {
    "vocab_size": 420,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
KINDS = {
    "seqcls": AutoModelForSequenceClassification,
    "tokcls": AutoModelForTokenClassification,
    "qa": AutoModelForQuestionAnswering,
    "mlm": AutoModelForMaskedLM,
}
# Words that the tokenizers split into one or several pieces.
TEXTS = [
    "the film is a moving and funny story",
    "paris",
    "the quick brown fox jumps over the lazy dog !",
    "unbelievable players walking",
    "it is funny",
    "john smith lives in new york city , where angela merkel met barack obama",
    "the lazy dog",
    "what is the capital of france ? it is paris .",
]


def tiny(head: str, folder: Path, *, model_type: str = "bert", config: Any = None, **options: Any) -> Any:
    """Return a model with a head, and its tokenizer."""
    is_roberta = model_type in ("roberta", "xlm-roberta")
    write, positions = (byte_level, 66) if is_roberta else (word_piece, 64)
    fields = {"model_type": model_type, **SIZES, "max_position_embeddings": positions, **(config or {})}
    if model_type == "bert":
        fields["type_vocab_size"] = 2
    if model_type == "distilbert":
        fields |= {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
    model = KINDS[head].from_config(fields, seed=0, **options)
    model.tokenizer = Tokenizer.from_directory(write(folder / "tokenizer"), config=fields)
    return model
