"""The tokens that the ids of a dataset stand for, to notice that it was made with another model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flodl.core import HFError

if TYPE_CHECKING:
    from ..models import PretrainedModel
    from ..text.tokenizer import Tokenizer
    from .tokens import Array

_NUM_IDS = 4096
_NUM_TOKENS = 256


@dataclass(frozen=True)
class UsedVocabulary:
    """Some ids at the beginning of a dataset with their tokens, and the labels of the model that made it."""

    tokens: tuple[tuple[int, str], ...]
    labels: tuple[str, ...]

    @classmethod
    def of(cls, ids: Array, tokenizer: Tokenizer, labels: tuple[str, ...]) -> UsedVocabulary:
        """Return the tokens of some of these ids."""
        found = np.unique(ids[:_NUM_IDS])
        chosen = found[:: -(-len(found) // _NUM_TOKENS) or 1].tolist()
        return cls(tuple((index, tokenizer.token(index)) for index in chosen), labels)

    def check(self, model: PretrainedModel) -> None:
        """Raise if the ids or labels have another meaning for this model."""
        labels = model.config.labels
        if labels != self.labels and sorted(labels) == sorted(self.labels):
            raise HFError(
                f"the dataset was made with another model, whose labels are {', '.join(self.labels)}; those "
                f"of this model are {', '.join(labels)}, so the class ids differ. Make it with the model "
                "that is trained: model.dataset(…)."
            )
        try:
            tokenizer = model.tokenizer
        except HFError:
            return  # a model from a config needs none to train
        for index, token in self.tokens:
            if (own := tokenizer.token(index)) != token:
                raise HFError(
                    f"the dataset was made with another model: its token {index} is {token!r}, which is "
                    f"{own!r} for the tokenizer of this model. Make it with the model that is trained: "
                    "model.dataset(…)."
                )
