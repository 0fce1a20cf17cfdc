"""The names of ModernBERT's parameters in checkpoints."""

from __future__ import annotations

from ...config import EncoderConfig
from ...heads import Head
from ...keys import KeyMap, Rules

ENCODER: Rules = {
    "embeddings.tokens.word": "embeddings.tok_embeddings",
    "embeddings.layernorm_1": "embeddings.norm",
    "encoder.layer.*.attention.layernorm_1": "layers.*.attn_norm",
    "encoder.layer.*.attention.rotaryattention_1.joint": "layers.*.attn.Wqkv",
    "encoder.layer.*.attention.localrotaryattention_1.joint": "layers.*.attn.Wqkv",
    "encoder.layer.*.attention.linear_1": "layers.*.attn.Wo",
    "encoder.layer.*.feed_forward.layernorm_1": "layers.*.mlp_norm",
    "encoder.layer.*.feed_forward.linear_1": "layers.*.mlp.Wi",
    "encoder.layer.*.feed_forward.linear_2": "layers.*.mlp.Wo",
    "encoder.layernorm_1": "final_norm",
}
HEAD: Rules = {
    "classifier": "classifier",
    "qa_outputs": "classifier",
    "pooler.linear_1": "head.dense",
    "pooler.layernorm_1": "head.norm",
    "transform.linear_1": "head.dense",
    "transform.layernorm_1": "head.norm",
    "lm_head.linear_1": "head.dense",
    "lm_head.layernorm_1": "head.norm",
    "lm_head.decoder_1": "decoder",
}


def keys(config: EncoderConfig, head: Head) -> KeyMap:
    """The names of a ModernBERT with one of the heads."""
    is_tied = head is Head.MASKED_LM and config.tied
    tied = {"decoder.weight": "model.embeddings.tok_embeddings.weight"} if is_tied else {}
    return KeyMap("model", ENCODER, HEAD, tied, is_base=head is Head.BASE)
