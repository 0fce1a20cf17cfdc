"""A model's tokenizer: texts to padded tensors, with offsets, words and special tokens."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from flodl.core import HFError
from flodl.core.files import expand_user
from flodl.core.formats import a_type
from flodl.core.output_files import check_path_type

from ..files.json_file import read_object
from ..files.names import TOKENIZER_FILES
from ..usage.calls import explained
from ..usage.values import check_listed, integer
from .backend import open_backend, with_prefix_space
from .limits import Limits
from .special_tokens import SpecialToken, SpecialTokens

if TYPE_CHECKING:
    from tokenizers import Encoding

Truncation = Literal["longest_first", "only_first", "only_second"]


class Tokenizer:
    """Split texts into the tokens of a model.

    Calling it returns the inputs of the model: `model(**tokenizer(["a text", "another"]))`.
    """

    def __init__(
        self,
        backend: Any,
        *,
        settings: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        files: Mapping[str, Path] | None = None,
    ) -> None:
        settings, config = settings or {}, config or {}
        self.backend = backend
        self.files = dict(files or {})
        self.limits = Limits.find(settings, config)
        self.special = SpecialTokens.find(settings, backend.token_to_id, pad_id=self.limits.pad_id)
        self.padding_side: Literal["left", "right"] = _side(settings, "padding_side")
        self.truncation_side: Literal["left", "right"] = _side(settings, "truncation_side")
        # Truncation is a setting of the backend, so two threads must not encode at the same time.
        self._lock = threading.Lock()
        self._for_words: Any = None

    @classmethod
    def from_directory(cls, directory: str | Path, *, config: Mapping[str, Any] | None = None) -> Tokenizer:
        """Open the tokenizer in a folder; `config` is the model's config.json, by default the one in it."""
        check_path_type(directory, what="folder", example="model", error=HFError)
        folder = expand_user(directory)
        files = {name: folder / name for name in TOKENIZER_FILES if (folder / name).is_file()}
        if not files:
            raise HFError(f"{folder} has no tokenizer files. Expected {', '.join(TOKENIZER_FILES)}.")
        if config is None:
            path = folder / "config.json"
            config = read_object(path) if path.is_file() else {}
        return cls.from_files(files, config=config)

    @classmethod
    def from_files(cls, files: Mapping[str, Path], *, config: Mapping[str, Any] | None = None) -> Tokenizer:
        """Open the tokenizer in these files, a mapping from names to paths."""
        for name, value in (("files", files), ("config", config or {})):
            if not isinstance(value, Mapping):
                raise HFError(f"{name} is {a_type(value)}; expected a dict with its items by name.")
        files, config = dict(files), config or {}
        settings: dict[str, Any] = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            if name in files:
                settings |= {
                    key: value for key, value in read_object(files[name]).items() if value is not None
                }
        model_type = config.get("model_type")
        backend = open_backend(files, settings, model_type=model_type if isinstance(model_type, str) else "")
        return cls(backend, settings=settings, config=config, files=files)

    @property
    def max_length(self) -> int | None:
        """The largest number of tokens, special tokens included; `None` without a limit."""
        return self.limits.max_length

    @property
    def pad_id(self) -> int:
        """The id that fills short rows; a model that has none gets 0, which its mask hides."""
        return self.special.pad.id if self.special.pad.id is not None else 0

    @property
    def mask(self) -> SpecialToken:
        """The token that a masked language model fills."""
        return self.special.mask

    @property
    def vocab_size(self) -> int:
        """The number of tokens, added ones included."""
        return int(self.backend.get_vocab_size())

    def __getstate__(self) -> dict[str, Any]:
        # A lock cannot be copied; a copy of the tokenizer has its own.
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def __repr__(self) -> str:
        limit = "no limit" if self.max_length is None else f"at most {self.max_length} tokens"
        return f"Tokenizer({self.vocab_size} tokens, {limit}, pad id {self.pad_id})"

    @explained("Write model.tokenizer(texts).", name="the tokenizer")
    def __call__(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        device: torch.device | str | None = None,
    ) -> dict[str, Tensor]:
        """Return the inputs of the model for these texts, or for pairs of texts."""
        texts = [texts] if isinstance(texts, str) else texts
        pairs = [pairs] if isinstance(pairs, str) else pairs
        return self.pad(self.encode(texts, pairs, max_length=max_length, offsets=False), device=device)

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
        stride: int | None = None,
        special_tokens: bool = True,
        offsets: bool = True,
        split_into_words: bool = False,
    ) -> list[Encoding]:
        """Encode each text; with a `stride`, `encoding.overflowing` contains the rest of a long text.

        A window repeats `stride` tokens of the one before it. `split_into_words` accepts lists of words.
        """
        inputs = _checked_inputs(texts, pairs, words=split_into_words)
        limit = self.limits.checked(max_length)
        specials = self.backend.num_special_tokens_to_add(pairs is not None) if special_tokens else 0
        if limit is not None and limit <= specials:
            raise HFError(
                f"max_length={limit} has no room for text, because there are {specials} special tokens. "
                f"Pass at least {specials + 1}."
            )
        stride = None if stride is None else integer(stride, "stride")
        if truncation not in get_args(Truncation):
            raise HFError(
                f"truncation={truncation!r:.60}; expected one of {', '.join(get_args(Truncation))}."
            )
        if stride is not None and (limit is None or not 0 <= stride < limit - specials):
            raise HFError(
                f"stride={stride} does not fit: a window has {'any number of' if limit is None else limit} "
                f"tokens, {specials} of them special. Pass a smaller stride, or a max_length."
            )
        with self._lock:
            backend = self._word_backend() if split_into_words else self.backend
            encode = backend.encode_batch if offsets else backend.encode_batch_fast
            _truncate(backend, limit, truncation, stride or 0, self.truncation_side)
            try:
                found = encode(inputs, is_pretokenized=split_into_words, add_special_tokens=special_tokens)
            except (KeyboardInterrupt, SystemExit, MemoryError):
                raise
            except BaseException as error:  # a panic of the library is not an `Exception`
                raise HFError(self._reason(error, truncation, limit)) from None
        return list(found)

    def _word_backend(self) -> Any:
        if self._for_words is None:
            self._for_words = with_prefix_space(self.backend)
        return self._for_words

    def _reason(self, error: BaseException, truncation: str, limit: int | None) -> str:
        if "`stride`" in str(error):
            return (
                f"the stride does not fit: a pair has at most {limit} tokens, and its other text leaves less "
                "room than the stride. Pass a smaller stride."
            )
        if "Truncation error" in str(error) or "too short to respect" in str(error):
            other = "first" if truncation == "only_second" else "second"
            return (
                f"the {other} text of a pair leaves no room for the text that is truncated: the limit "
                f"is {limit} tokens. Shorten it, or truncate with 'longest_first'."
            )
        where = next(iter(self.files.values()), Path("the tokenizer"))
        return f"{where}: the tokenizer cannot encode this text: {error}. Its files are damaged."

    def pad(
        self,
        encodings: Sequence[Encoding],
        *,
        device: torch.device | str | None = None,
        multiple_of: int = 1,
        vocab_size: int | None = None,
    ) -> dict[str, Tensor]:
        """Pad to the longest of the encodings (up to a multiple), and return the inputs of the model.

        Ids of `vocab_size` or more are an error; by default, the config of the tokenizer says how many.
        """
        if not isinstance(encodings, Sequence) or any(not hasattr(item, "ids") for item in encodings):
            raise HFError(f"encodings is {a_type(encodings)}; expected what tokenizer.encode(texts) returns.")
        if not encodings:
            raise HFError("a batch needs at least one text, but the list is empty.")
        rows = [encoding.ids for encoding in encodings]
        longest = max(map(len, rows))
        shape = len(rows), -(-longest // multiple_of) * multiple_of
        batch = {"input_ids": np.full(shape, self.pad_id), "attention_mask": np.zeros(shape, np.int64)}
        if self.limits.has_token_types:
            batch["token_type_ids"] = np.zeros(shape, np.int64)
        for index, (ids, encoding) in enumerate(zip(rows, encodings)):
            place = slice(shape[1] - len(ids), None) if self.padding_side == "left" else slice(len(ids))
            batch["input_ids"][index, place] = ids
            batch["attention_mask"][index, place] = 1
            if self.limits.has_token_types:
                batch["token_type_ids"][index, place] = encoding.type_ids
        self._check_ids(batch["input_ids"], self.limits.vocab_size if vocab_size is None else vocab_size)
        return {name: torch.from_numpy(values).to(device) for name, values in batch.items()}

    def _check_ids(self, ids: np.ndarray[Any, Any], size: int | None) -> None:
        if size is not None and ids.size and ids.max() >= size:
            token = self.backend.id_to_token(int(ids.max()))
            raise HFError(
                f"the token {token!r} has the id {ids.max()}, but the model has {size} tokens (vocab_size). "
                "The tokenizer does not belong to the model, or tokens were added to it but not to the model."
            )

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of these tokens."""
        check_listed(ids, "ids", "[101, 2023, 102]")
        listed = [
            integer(index, "a token id") for index in (ids.tolist() if isinstance(ids, Tensor) else ids)
        ]
        return str(self.backend.decode(listed, skip_special_tokens=skip_special_tokens))

    def token(self, index: int) -> str:
        """Return the token with an id."""
        found = self.backend.id_to_token(integer(index, "index"))
        return "" if found is None else str(found)

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text that tokens stand for."""
        check_listed(tokens, "tokens", "['a', 'film']")
        decoder = self.backend.decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(list(tokens)))

    @property
    def marks_continuations(self) -> bool:
        """Whether a token shows that it continues a word, like ##ing in WordPiece."""
        return bool(getattr(self.backend.model, "continuing_subword_prefix", None))


def _truncate(backend: Any, limit: int | None, strategy: str, stride: int, side: str) -> None:
    if limit is None:
        backend.no_truncation()
    else:
        backend.enable_truncation(limit, stride=stride, strategy=strategy, direction=side)


def _side(settings: Mapping[str, Any], name: str) -> Literal["left", "right"]:
    side = settings.get(name, "right")
    if side not in ("left", "right"):
        raise HFError(f"tokenizer_config.json: {name} is {side!r}; expected 'left' or 'right'.")
    return "left" if side == "left" else "right"


def _checked_inputs(texts: Sequence[Any], pairs: Sequence[Any] | None, *, words: bool) -> list[Any]:
    """Check what the library would refuse without the index of the text."""
    if isinstance(texts, str):
        raise HFError("expected a list of texts, got one text. Put it into a list.")
    check_listed(texts, "texts", "['a text', 'another one']")
    texts = texts if isinstance(texts, Sequence) else list(texts)
    if pairs is not None:
        check_listed(pairs, "pairs", "['a second text', 'another one']")
        pairs = pairs if isinstance(pairs, Sequence) else list(pairs)
    if pairs is not None and len(pairs) != len(texts):
        raise HFError(f"there are {len(texts)} texts and {len(pairs)} second texts; expected one per text.")
    for index, text in enumerate(texts):
        _check_text(text, f"text {index}", words=words)
    if pairs is None:
        return list(texts)
    for index, text in enumerate(pairs):
        _check_text(text, f"second text {index}", words=words)
    return list(zip(texts, pairs))


def _check_text(text: Any, name: str, *, words: bool) -> None:
    if words:
        if isinstance(text, str) or not isinstance(text, Sequence):
            raise HFError(f"{name} is {a_type(text)}; expected a list of words.")
        for index, word in enumerate(text):
            _check_text(word, f"word {index} of {name}", words=False)
        return
    if not isinstance(text, str):
        raise HFError(f"{name} is {a_type(text)} ({text!r:.60}); expected a string.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise HFError(
            f"{name} contains half of a surrogate pair at character {error.start}, which is not "
            "valid Unicode. Read the text with the right encoding, or replace the character."
        ) from None
