"""The names of BERT's parameters in checkpoints."""

from __future__ import annotations

from ...config import EncoderConfig
from ...heads import Head
from ...keys import KeyMap, Rules

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

CLASSIFIER: Rules = {"classifier": "classifier"}
ANSWER: Rules = {"qa_outputs": "qa_outputs"}


def masked_lm(transform: str, norm: str, owner: str, config: EncoderConfig) -> dict[str, str]:
    """The names of a masked-LM head; untied, its bias belongs to the decoder."""
    return {
        "lm_head.linear_1": transform,
        "lm_head.layernorm_1": norm,
        "lm_head.decoder_1.weight": f"{owner}.decoder.weight",
        "lm_head.decoder_1.bias": f"{owner}.bias" if config.tied else f"{owner}.decoder.bias",
        "lm_head.decoder_1.spare_bias": f"{owner}.bias",
    }


def tied_decoder(owner: str, word: str, config: EncoderConfig) -> dict[str, str]:
    """The redundant names of a decoder that is tied to the word embedding."""
    redundant = {f"{owner}.decoder.weight": word, f"{owner}.decoder.bias": f"{owner}.bias"}
    return redundant if config.tied else {}


def keys(config: EncoderConfig, head: Head) -> KeyMap:
    """The names of a BERT with one of the heads."""
    if head is Head.MASKED_LM:
        names = masked_lm(
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions",
            config,
        )
        tied = tied_decoder("cls.predictions", "bert.embeddings.word_embeddings.weight", config)
        return KeyMap("bert", ENCODER, names, tied)
    own = ANSWER if head is Head.QUESTION_ANSWERING else CLASSIFIER if head.has_labels else {}
    return KeyMap("bert", ENCODER, dict(own), is_base=head is Head.BASE)
