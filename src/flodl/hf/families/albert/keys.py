"""The names of ALBERT's parameters in checkpoints."""

from __future__ import annotations

from ...config import EncoderConfig
from ...heads import Head
from ...keys import CLASSIFIERS, KeyMap, Rules, masked_lm_rules, tied_decoder

EMBEDDINGS: Rules = {
    "embeddings.tokens.word": "embeddings.word_embeddings",
    "embeddings.tokens.position": "embeddings.position_embeddings",
    "embeddings.tokens.token_type": "embeddings.token_type_embeddings",
    "embeddings.layernorm_1": "embeddings.LayerNorm",
    "encoder.linear_1": "encoder.embedding_hidden_mapping_in",
    "pooler.linear_1": "pooler",
}
LAYER: Rules = {
    "attention.selfattention_1.query": "attention.query",
    "attention.selfattention_1.key": "attention.key",
    "attention.selfattention_1.value": "attention.value",
    "attention.linear_1": "attention.dense",
    "layernorm_1": "attention.LayerNorm",
    "feed_forward.linear_1": "ffn",
    "feed_forward.linear_2": "ffn_output",
    "layernorm_2": "full_layer_layer_norm",
}


def encoder(config: EncoderConfig) -> Rules:
    """The names of the encoder; a group with several layers numbers them."""
    several = config.options.group_size > 1
    ours = "encoder.layer.*.body.*" if several else "encoder.layer.*.body"
    theirs = f"encoder.albert_layer_groups.*.albert_layers.{'*' if several else 0}"
    return {**EMBEDDINGS, **{f"{ours}.{name}": f"{theirs}.{key}" for name, key in LAYER.items()}}


def keys(config: EncoderConfig, head: Head) -> KeyMap:
    """The names of an ALBERT with one of the heads."""
    if head is Head.MASKED_LM:
        names = masked_lm_rules("predictions.dense", "predictions.LayerNorm", "predictions", config)
        tied = tied_decoder("predictions", "albert.embeddings.word_embeddings.weight", config)
        return KeyMap("albert", encoder(config), names, tied)
    return KeyMap("albert", encoder(config), CLASSIFIERS, is_base=head is Head.BASE)
