"""`Head`: what a model computes on top of its encoder."""

from __future__ import annotations

from enum import Enum


class Head(Enum):
    """A head, named by its short form; `suffix` ends the class name in `architectures`.

    >>> Head("qa"), Head.MASKED_LM.suffix
    (<Head.QUESTION_ANSWERING: 'qa'>, 'ForMaskedLM')
    """

    BASE = "base"
    SEQUENCE_CLASSIFICATION = "seqcls"
    TOKEN_CLASSIFICATION = "tokcls"
    QUESTION_ANSWERING = "qa"
    MASKED_LM = "mlm"

    @property
    def suffix(self) -> str:
        """The end of the class name: 'Model', 'ForSequenceClassification', …"""
        words = "".join(word.capitalize() for word in self.name.split("_"))
        return "Model" if self is Head.BASE else "For" + words.replace("Lm", "LM")

    @property
    def has_labels(self) -> bool:
        """Whether the number of outputs is the number of labels in the config."""
        return self in (Head.SEQUENCE_CLASSIFICATION, Head.TOKEN_CLASSIFICATION)
