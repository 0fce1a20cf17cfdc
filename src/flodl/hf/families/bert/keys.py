"""The names of BERT's parameters in checkpoints."""

from __future__ import annotations

from ...config import EncoderConfig
from ...heads import Head
from ...keys import CLASSIFIERS, KeyMap, Rules, masked_lm_rules, tied_decoder

ENCODER: Rules = {
    "embeddings.tokens.word": "embeddings.word_embeddings",
    "embeddings.tokens.position": "embeddings.position_embeddings",
    "embeddings.tokens.token_type": "embeddings.token_type_embeddings",
    "embeddings.layernorm_1": "embeddings.LayerNorm",
    "encoder.layer.*.attention.selfattention_1.query": "encoder.layer.*.attention.self.query",
    "encoder.layer.*.attention.selfattention_1.key": "encoder.layer.*.attention.self.key",
    "encoder.layer.*.attention.selfattention_1.value": "encoder.layer.*.attention.self.value",
    "encoder.layer.*.attention.linear_1": "encoder.layer.*.attention.output.dense",
    "encoder.layer.*.layernorm_1": "encoder.layer.*.attention.output.LayerNorm",
    "encoder.layer.*.feed_forward.linear_1": "encoder.layer.*.intermediate.dense",
    "encoder.layer.*.feed_forward.linear_2": "encoder.layer.*.output.dense",
    "encoder.layer.*.layernorm_2": "encoder.layer.*.output.LayerNorm",
    "pooler.linear_1": "pooler.dense",
}


def keys(config: EncoderConfig, head: Head) -> KeyMap:
    """The names of a BERT with one of the heads."""
    if head is Head.MASKED_LM:
        transform = "cls.predictions.transform"
        names = masked_lm_rules(f"{transform}.dense", f"{transform}.LayerNorm", "cls.predictions", config)
        tied = tied_decoder("cls.predictions", "bert.embeddings.word_embeddings.weight", config)
        return KeyMap("bert", ENCODER, names, tied)
    return KeyMap("bert", ENCODER, CLASSIFIERS, is_base=head is Head.BASE)
