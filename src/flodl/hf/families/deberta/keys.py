"""The names of DeBERTa's parameters in checkpoints."""

from __future__ import annotations

from ...config import EncoderConfig
from ...heads import Head
from ...keys import CLASSIFIERS, KeyMap, Rules, masked_lm_rules, tied_decoder

ENCODER: Rules = {
    "embeddings.tokens.word": "embeddings.word_embeddings",
    "embeddings.tokens.position": "embeddings.position_embeddings",
    "embeddings.tokens.token_type": "embeddings.token_type_embeddings",
    "embeddings.linear_1": "embeddings.embed_proj",
    "embeddings.layernorm_1": "embeddings.LayerNorm",
    "encoder.relative.embeddings": "encoder.rel_embeddings",
    "encoder.relative.norm": "encoder.LayerNorm",
    "encoder.layer.convolution.conv": "encoder.conv.conv",
    "encoder.layer.convolution.norm": "encoder.conv.LayerNorm",
    "encoder.layer.*.attention.disentangledattention_1.query": "encoder.layer.*.attention.self.query_proj",
    "encoder.layer.*.attention.disentangledattention_1.key": "encoder.layer.*.attention.self.key_proj",
    "encoder.layer.*.attention.disentangledattention_1.value": "encoder.layer.*.attention.self.value_proj",
    "encoder.layer.*.attention.disentangledattention_1.position_key": (
        "encoder.layer.*.attention.self.pos_key_proj"
    ),
    "encoder.layer.*.attention.disentangledattention_1.position_query": (
        "encoder.layer.*.attention.self.pos_query_proj"
    ),
    "encoder.layer.*.attention.linear_1": "encoder.layer.*.attention.output.dense",
    "encoder.layer.*.layernorm_1": "encoder.layer.*.attention.output.LayerNorm",
    "encoder.layer.*.feed_forward.linear_1": "encoder.layer.*.intermediate.dense",
    "encoder.layer.*.feed_forward.linear_2": "encoder.layer.*.output.dense",
    "encoder.layer.*.layernorm_2": "encoder.layer.*.output.LayerNorm",
}
HEAD: Rules = {**CLASSIFIERS, "pooler.linear_1": "pooler.dense"}

WORD = "deberta.embeddings.word_embeddings.weight"
OLD = "cls.predictions"
NEW = "lm_predictions.lm_head"
# Both versions of the masked-LM head have the same parts.
NEW_TO_OLD = {
    f"{NEW}.bias": f"{OLD}.bias",
    **{
        f"{NEW}.{part}.{leaf}": f"{OLD}.transform.{part}.{leaf}"
        for part in ("dense", "LayerNorm")
        for leaf in ("weight", "bias")
    },
}


def keys(config: EncoderConfig, head: Head) -> KeyMap:
    """The names of a DeBERTa with one of the heads; `legacy` decides where the masked-LM head is."""
    if head is not Head.MASKED_LM:
        return KeyMap("deberta", ENCODER, HEAD, is_base=head is Head.BASE)
    if config.options.legacy:
        names = masked_lm_rules(f"{OLD}.transform.dense", f"{OLD}.transform.LayerNorm", OLD, config)
        return KeyMap("deberta", ENCODER, names, tied_decoder(OLD, WORD, config), aliases=NEW_TO_OLD)
    names = {
        "lm_head.linear_1": f"{NEW}.dense",
        "lm_head.layernorm_1": f"{NEW}.LayerNorm",
        "lm_head.decoder_1.bias": f"{NEW}.bias",
    }
    old_to_new = {old: new for new, old in NEW_TO_OLD.items()}
    return KeyMap("deberta", ENCODER, names, aliases=old_to_new)
