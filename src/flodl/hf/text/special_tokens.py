"""The special tokens of a model, from the files that name them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# What a token is called where no file says so. The first one in the vocabulary counts.
_USUAL = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


@dataclass(frozen=True)
class SpecialToken:
    """A token and its id; both are `None` where the model does not have it."""

    text: str | None = None
    id: int | None = None


@dataclass(frozen=True)
class SpecialTokens:
    """The five special tokens that encoders use."""

    pad: SpecialToken
    unk: SpecialToken
    cls: SpecialToken
    sep: SpecialToken
    mask: SpecialToken

    @classmethod
    def find(
        cls, settings: Mapping[str, Any], id_of: Callable[[str], int | None], *, pad_id: int | None
    ) -> SpecialTokens:
        """Look the tokens up; `settings` is tokenizer_config.json, `pad_id` the fallback from config.json.

        >>> vocabulary = {"<pad>": 1, "<mask>": 4}
        >>> found = SpecialTokens.find({"pad_token": {"content": "<pad>"}}, vocabulary.get, pad_id=None)
        >>> found.pad, found.mask.id, found.sep.id
        (SpecialToken(text='<pad>', id=1), 4, None)
        """
        tokens = {name: _find(_candidates(name, settings), id_of) for name in _USUAL}
        if tokens["pad"].id is None and pad_id is not None:
            tokens["pad"] = SpecialToken(None, pad_id)
        return cls(**tokens)


def token_text(value: Any) -> str | None:
    """Return the text of a token, which the files write as a string or as an object."""
    content = value.get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) and content else None


def _candidates(name: str, settings: Mapping[str, Any]) -> Iterable[str]:
    named = token_text(settings.get(f"{name}_token"))
    return (named, *_USUAL[name]) if named else _USUAL[name]


def _find(candidates: Iterable[str], id_of: Callable[[str], int | None]) -> SpecialToken:
    for text in candidates:
        found = id_of(text)
        if found is not None:
            return SpecialToken(text, found)
    return SpecialToken()
