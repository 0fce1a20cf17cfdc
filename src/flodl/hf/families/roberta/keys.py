"""The names of RoBERTa's parameters in checkpoints: the encoder is BERT's."""

from __future__ import annotations

from ...config import EncoderConfig
from ...heads import Head
from ...keys import CLASSIFIERS, KeyMap, Rules, masked_lm_rules, tied_decoder
from ..bert.keys import ENCODER

SEQUENCE_CLASSIFIER: Rules = {
    "classifier.linear_1": "classifier.dense",
    "classifier.linear_2": "classifier.out_proj",
}


def keys(config: EncoderConfig, head: Head) -> KeyMap:
    """The names of a RoBERTa with one of the heads."""
    if head is Head.MASKED_LM:
        names = masked_lm_rules("lm_head.dense", "lm_head.layer_norm", "lm_head", config)
        tied = tied_decoder("lm_head", "roberta.embeddings.word_embeddings.weight", config)
        return KeyMap("roberta", ENCODER, names, tied)
    names = SEQUENCE_CLASSIFIER if head is Head.SEQUENCE_CLASSIFICATION else CLASSIFIERS
    return KeyMap("roberta", ENCODER, names, is_base=head is Head.BASE)
