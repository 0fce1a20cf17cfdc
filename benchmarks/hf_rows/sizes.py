"""Sizes of the models and of the measurement, and a tiny version of both to try the scripts on a CPU."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LENGTHS = Path(__file__).parents[1] / "hf_lengths.json"
# The base size of all families, and what BERT and DeBERTa-v3 have besides.
BASE: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
BERT: dict[str, Any] = {
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
DEBERTA: dict[str, Any] = {
    "vocab_size": 128100,
    "max_position_embeddings": 512,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 256,
    "max_relative_positions": -1,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "layer_norm_eps": 1e-7,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Sizes:
    """What to measure with: base size on CUDA, or tiny."""

    device: str
    quick: bool
    rounds: int

    @property
    def bert(self) -> dict[str, Any]:
        """The config of BERT-base, without dropout of attention weights."""
        config = {**BASE, **BERT, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.0}
        return config | (_TINY if self.quick else {})

    @property
    def deberta(self) -> dict[str, Any]:
        """The config of DeBERTa-v3-base, without dropout of attention weights."""
        config = self.bert | DEBERTA
        return config | ({**_TINY, "position_buckets": 32} if self.quick else {})

    def lengths(self, data: str) -> list[int]:
        """Return the numbers of tokens of a data set, in a random order."""
        found: list[int] = json.loads(LENGTHS.read_text())[data]
        return found

    def steps(self, batch: int) -> int:
        """Return how many batches of an epoch are measured."""
        return 3 if self.quick else max(12, 1280 // batch)


_TINY = {
    "vocab_size": 1000,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
