"""What a model can take: tokens per text, ids, and token types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flodl.core import HFError
from flodl.core.integers import is_index

# Larger values mean "no limit": transformers writes int(1e30).
_UNLIMITED = 1 << 31
# Position ids of these start after the id of the padding token.
_POSITIONS_AFTER_PAD = ("roberta", "xlm-roberta")
# Families whose models have embeddings of token types, with the default number of types.
_TOKEN_TYPES = {"bert": 2, "albert": 2, "roberta": 1, "xlm-roberta": 1, "deberta-v2": 0}


@dataclass(frozen=True)
class Limits:
    """The limits of a model and its tokenizer; `None` where there is none."""

    max_length: int | None = None
    vocab_size: int | None = None
    pad_id: int | None = None
    has_token_types: bool = True

    @classmethod
    def find(cls, settings: Mapping[str, Any], config: Mapping[str, Any]) -> Limits:
        """Read tokenizer_config.json and config.json.

        >>> Limits.find({"model_max_length": 1e30}, {"model_type": "roberta", "max_position_embeddings": 514})
        Limits(max_length=512, vocab_size=None, pad_id=1, has_token_types=False)
        """
        model_type = config.get("model_type")
        pad_id = _count(config.get("pad_token_id"), smallest=0)
        if pad_id is None and model_type in _POSITIONS_AFTER_PAD:
            pad_id = 1
        positions = _count(config.get("max_position_embeddings"))
        if positions is not None and pad_id is not None and model_type in _POSITIONS_AFTER_PAD:
            positions = max(positions - pad_id - 1, 1)
        found = [
            limit for limit in (_count(settings.get("model_max_length")), positions) if limit is not None
        ]
        return cls(
            max_length=min(found, default=None),
            vocab_size=_count(config.get("vocab_size")),
            pad_id=pad_id,
            has_token_types=_has_token_types(model_type, config),
        )

    def checked(self, max_length: int | None) -> int | None:
        """Return the limit to use for a call that asks for `max_length`."""
        if max_length is None:
            return self.max_length
        if not is_index(max_length, at_least=1) or (
            self.max_length is not None and max_length > self.max_length
        ):
            most = (
                "" if self.max_length is None else f" and at most {self.max_length}, the maximum of the model"
            )
            raise HFError(
                f"max_length={max_length!r} is out of range; expected an integer of at least 1{most}."
            )
        return max_length


def _count(value: Any, *, smallest: int = 1) -> int | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and smallest <= value < _UNLIMITED else None


def _has_token_types(model_type: Any, config: Mapping[str, Any]) -> bool:
    if not config:
        return True
    usual = _TOKEN_TYPES.get(model_type, 0) if isinstance(model_type, str) else 2
    number = _count(config.get("type_vocab_size"), smallest=0)
    if model_type not in _TOKEN_TYPES and isinstance(model_type, str):
        return False
    return (usual if number is None else number) > 1
