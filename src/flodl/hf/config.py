"""`EncoderConfig`: the options of a config.json, checked and under the same names in all families."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flodl.core import HFError
from flodl.core.formats import a_type

_REQUIRED = object()


@dataclass(frozen=True)
class Sizes:
    """The sizes of an encoder."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    intermediate: int
    positions: int
    token_types: int = 0
    embedding: int = 0

    def __post_init__(self) -> None:
        if not self.embedding:
            object.__setattr__(self, "embedding", self.hidden)


@dataclass(frozen=True)
class Dropouts:
    """The dropout probabilities: of hidden states, of attention weights, and in front of the classifier."""

    hidden: float = 0.0
    attention: float = 0.0
    classifier: float = 0.0


@dataclass(frozen=True)
class EncoderConfig:
    """The options that all families share; `options` holds those of one family, `raw` the config.json."""

    model_type: str
    sizes: Sizes
    dropout: Dropouts
    activation: str
    norm_eps: float
    pad_token_id: int | None
    labels: tuple[str, ...]
    problem_type: str | None = None
    tied: bool = True
    pooler: bool = True
    initializer_range: float = 0.02
    options: Any = None
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_labels(self) -> int:
        """The number of outputs of a classifier."""
        return len(self.labels)


class Fields:
    """Read typed values from a config.json; an error names the field and its value.

    >>> Fields({"hidden_size": 32}).integer("hidden_size")
    32
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        if not isinstance(raw, Mapping):
            raise HFError(f"the config is {a_type(raw)}. It must be a JSON object.")
        self.raw = raw

    def integer(self, name: str, default: Any = _REQUIRED, *, least: int = 1) -> int:
        """Return an integer that is at least `least`."""
        value = self._get(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(name, value, f"an integer of at least {least}")
        return value

    def token_id(self, name: str, default: int | None) -> int | None:
        """Return a token id, or None where the config says null."""
        value = self.raw.get(name, default)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self.error(name, value, "a token id or null")

    def number(self, name: str, default: Any = _REQUIRED) -> float:
        """Return a finite number of at least zero."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, value, "a number")
        if not math.isfinite(value) or value < 0:
            raise self.error(name, value, "a finite number of at least 0")
        return float(value)

    def probability(self, name: str, default: float) -> float:
        """Return a dropout probability."""
        value = self.number(name, default)
        if value > 1:
            raise self.error(name, value, "a probability between 0 and 1")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        """Return a string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.error(name, value, "a string")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def classifier_dropout(self, default: float) -> float:
        """Return `classifier_dropout`, which falls back to another dropout where it is null."""
        missing = self.raw.get("classifier_dropout") is None
        return default if missing else self.probability("classifier_dropout", default)

    def refuse(self, name: str, *supported: Any, why: str) -> None:
        """Raise if an option is set to something other than the supported values."""
        value = self.raw.get(name)
        if value is not None and value not in supported:
            raise HFError(
                f"config.json: {name} is {value!r}, which flodl does not support: {why}. "
                f"Use a checkpoint with {name} {' or '.join(map(repr, supported))}."
            )

    def refuse_decoders(self) -> None:
        """Raise if the model is not a plain encoder with absolute positions."""
        self.refuse("is_decoder", False, why="it makes the attention causal, and flodl has encoders only")
        self.refuse("add_cross_attention", False, why="flodl has no cross-attention")
        self.refuse("position_embedding_type", "absolute", why="transformers dropped it too")
        self.refuse("pruned_heads", {}, [], why="heads were removed from some layers")

    def labels(self) -> tuple[str, ...]:
        """Return the label names by id; ids without a usable name are called LABEL_0, LABEL_1, …"""
        names = self.raw.get("id2label")
        found: dict[int, str] = {}
        if names is not None and not isinstance(names, Mapping):
            raise self.error("id2label", names, "an object from ids to names")
        for key, name in (names or {}).items():
            if not isinstance(name, str | int | float) or not str(key).strip().lstrip("-").isdigit():
                raise self.error("id2label", {key: name}, "an object from ids to names")
            found[int(key)] = str(name)
        count = self.raw.get("num_labels")
        if count is None:
            count = len(found) or 2
        elif isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise self.error("num_labels", count, "an integer of at least 1")
        if set(found) != set(range(count)):
            found = {}
        return tuple(found.get(index, f"LABEL_{index}") for index in range(count))

    def problem_type(self) -> str | None:
        """Return the kind of sequence classification, or None if the labels decide."""
        value = self.raw.get("problem_type")
        known = ("regression", "single_label_classification", "multi_label_classification")
        if value is not None and value not in known:
            raise self.error("problem_type", value, f"one of {', '.join(known)}")
        return value

    def shared(self) -> dict[str, Any]:
        """Return the fields of `EncoderConfig` that have the same name in every config.json."""
        return {
            "labels": self.labels(),
            "problem_type": self.problem_type(),
            "tied": self.flag("tie_word_embeddings", True),
            "initializer_range": self.number("initializer_range", 0.02),
            "raw": dict(self.raw),
        }

    def error(self, name: str, value: Any, expected: str) -> HFError:
        """Return the error for a field with the wrong value."""
        return HFError(f"config.json: {name} is {value!r}. It must be {expected}.")

    def _get(self, name: str, default: Any) -> Any:
        value = self.raw.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise HFError(f"config.json has no {name}. Add it; the weights cannot be loaded without it.")
        return default


def check_heads(sizes: Sizes) -> Sizes:
    """Raise if the hidden size cannot be divided among the attention heads."""
    if sizes.hidden % sizes.heads:
        raise HFError(
            f"config.json: a hidden size of {sizes.hidden} cannot be divided among {sizes.heads} attention "
            "heads. One of the two numbers is wrong."
        )
    return sizes


def bert_sizes(fields: Fields, *, token_types: int = 2, embedding: int = 0) -> Sizes:
    """Read the sizes under the names that BERT and its descendants use; the arguments are defaults."""
    return check_heads(
        Sizes(
            vocab=fields.integer("vocab_size"),
            hidden=fields.integer("hidden_size"),
            layers=fields.integer("num_hidden_layers", least=0),
            heads=fields.integer("num_attention_heads"),
            intermediate=fields.integer("intermediate_size"),
            positions=fields.integer("max_position_embeddings", 512),
            token_types=fields.integer("type_vocab_size", token_types, least=0),
            embedding=fields.integer("embedding_size", embedding, least=0),
        )
    )


def bert_dropouts(fields: Fields, default: float = 0.1) -> Dropouts:
    """Read the dropouts under the names that BERT and its descendants use."""
    hidden = fields.probability("hidden_dropout_prob", default)
    attention = fields.probability("attention_probs_dropout_prob", default)
    return Dropouts(hidden, attention, fields.classifier_dropout(hidden))
