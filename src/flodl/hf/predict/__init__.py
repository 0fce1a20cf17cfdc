"""Predictions on raw text: run a model in batches of similar length, then interpret its outputs."""

from .answer import answer_questions
from .classify import classify_texts
from .embed import embed_texts
from .fill import fill_masks
from .pooling import Pooling
from .results import Answer, Classification, Entity, Fill, LabelScore, TaggedToken
from .runner import Runner
from .tag import tag_texts

__all__ = [
    "Answer",
    "Classification",
    "Entity",
    "Fill",
    "LabelScore",
    "Pooling",
    "Runner",
    "TaggedToken",
    "answer_questions",
    "classify_texts",
    "embed_texts",
    "fill_masks",
    "tag_texts",
]
