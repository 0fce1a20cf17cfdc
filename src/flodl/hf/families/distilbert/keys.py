"""The names of DistilBERT's parameters in checkpoints."""

from __future__ import annotations

from ...config import EncoderConfig
from ...heads import Head
from ...keys import CLASSIFIERS, KeyMap, Rules

ENCODER: Rules = {
    "embeddings.tokens.word": "embeddings.word_embeddings",
    "embeddings.tokens.position": "embeddings.position_embeddings",
    "embeddings.layernorm_1": "embeddings.LayerNorm",
    "encoder.layer.*.attention.selfattention_1.query": "transformer.layer.*.attention.q_lin",
    "encoder.layer.*.attention.selfattention_1.key": "transformer.layer.*.attention.k_lin",
    "encoder.layer.*.attention.selfattention_1.value": "transformer.layer.*.attention.v_lin",
    "encoder.layer.*.attention.linear_1": "transformer.layer.*.attention.out_lin",
    "encoder.layer.*.layernorm_1": "transformer.layer.*.sa_layer_norm",
    "encoder.layer.*.feed_forward.linear_1": "transformer.layer.*.ffn.lin1",
    "encoder.layer.*.feed_forward.linear_2": "transformer.layer.*.ffn.lin2",
    "encoder.layer.*.layernorm_2": "transformer.layer.*.output_layer_norm",
}
HEAD: Rules = {
    **CLASSIFIERS,
    "pooler.linear_1": "pre_classifier",
    "lm_head.linear_1": "vocab_transform",
    "lm_head.layernorm_1": "vocab_layer_norm",
    "lm_head.decoder_1": "vocab_projector",
}


def keys(config: EncoderConfig, head: Head) -> KeyMap:
    """The names of a DistilBERT with one of the heads."""
    is_tied = head is Head.MASKED_LM and config.tied
    tied = {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"} if is_tied else {}
    return KeyMap("distilbert", ENCODER, HEAD, tied, is_base=head is Head.BASE)
