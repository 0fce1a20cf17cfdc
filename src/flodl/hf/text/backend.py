"""The `tokenizers.Tokenizer` of a model, from whichever tokenizer files it has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flodl.core import HFError
from flodl.core.files import read_limited

from ..extra import require
from ..files.json_file import read_object
from . import build
from .sentencepiece_file import read_model
from .special_tokens import token_text

_MAX_BYTES = 1 << 28
_SENTENCEPIECE = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")
_SPECIAL = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def open_backend(files: Mapping[str, Path], settings: Mapping[str, Any], *, model_type: str) -> Any:
    """Read tokenizer.json, or build the same from the older files."""
    library = require("tokenizers", "tokenization")
    sentencepiece = next((files[name] for name in _SENTENCEPIECE if name in files), None)
    if "tokenizer.json" in files:
        return _read(library, files["tokenizer.json"], settings)
    if "vocab.txt" in files:
        path = files["vocab.txt"]
        backend = _checked(path, lambda: build.word_piece(library, path, settings))
    elif "vocab.json" in files and "merges.txt" in files:
        path = files["merges.txt"]
        backend = _checked(path, lambda: build.byte_level(library, files["vocab.json"], path, settings))
    elif sentencepiece is not None:
        path, model = sentencepiece, read_model(sentencepiece)
        backend = _checked(path, lambda: build.unigram(library, path, model, settings, model_type=model_type))
    else:
        raise HFError(
            f"the model has no tokenizer (files: {', '.join(sorted(files)) or 'none'}). Expected "
            "tokenizer.json, vocab.txt, vocab.json with merges.txt, or a SentencePiece model."
        )
    return _checked(path, lambda: _add_tokens(library, backend, files, settings))


def _checked(path: Path, call: Callable[[], Any]) -> Any:
    """Call the library, whose errors (and panics, which are not an `Exception`) do not name the file."""
    try:
        return call()
    except (HFError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise HFError(
            f"{path} does not contain a usable tokenizer: {error}. "
            "The file is damaged or incomplete: download it again."
        ) from None


def _read(library: Any, path: Path, settings: Mapping[str, Any]) -> Any:
    try:
        data = read_limited(path, max_bytes=_MAX_BYTES)
    except OSError as error:
        raise HFError(f"{path} cannot be read: {error.strerror or error}.") from error
    backend = _checked(path, lambda: library.Tokenizer.from_buffer(data))
    # Every call sets these two; files often keep the settings of whoever saved them last.
    backend.no_padding()
    backend.no_truncation()
    _checked(path, lambda: _apply(library, backend, settings))
    return backend


def _apply(library: Any, backend: Any, settings: Mapping[str, Any]) -> None:
    """Let tokenizer_config.json override what both files describe, as in transformers."""
    normalizer = backend.normalizer
    if isinstance(normalizer, library.normalizers.BertNormalizer):
        wanted = {
            "lowercase": settings.get("do_lower_case"),
            "strip_accents": settings.get("strip_accents"),
            "handle_chinese_chars": settings.get("tokenize_chinese_chars"),
        }
        for name, value in wanted.items():
            if isinstance(value, bool):
                setattr(normalizer, name, value)
        backend.normalizer = normalizer
    splitter, prefix_space = backend.pre_tokenizer, settings.get("add_prefix_space")
    if isinstance(splitter, library.pre_tokenizers.ByteLevel) and isinstance(prefix_space, bool):
        splitter.add_prefix_space = prefix_space
        backend.pre_tokenizer = splitter


def with_prefix_space(backend: Any) -> Any:
    """Return the tokenizer to use for single words: one that treats each as if a space were in front of it.

    Where spaces are a part of the tokens, a word without one would be split as the start of a text.
    """
    library = require("tokenizers", "tokenization")
    description = json.loads(backend.to_str())
    changed = [_set_prefix_space(description.get(part)) for part in ("pre_tokenizer", "post_processor")]
    return library.Tokenizer.from_str(json.dumps(description)) if any(changed) else backend


def _set_prefix_space(part: Any) -> bool:
    """Set the option wherever it is false; return whether it was somewhere."""
    if isinstance(part, list):
        return sum(map(_set_prefix_space, part)) > 0
    if not isinstance(part, dict):
        return False
    changed = part.get("add_prefix_space") is False
    if changed:
        part["add_prefix_space"] = True
    return sum(map(_set_prefix_space, part.values())) > 0 or changed


def _add_tokens(library: Any, backend: Any, files: Mapping[str, Path], settings: Mapping[str, Any]) -> Any:
    """Add the special tokens, and the tokens that were added to the vocabulary later."""
    ids: dict[str, int] = {}
    tokens: dict[str, Any] = {}
    for name in _SPECIAL:
        value = settings.get(f"{name}_token")
        text = token_text(value)
        if text is not None:
            tokens[text] = _added(library, text, value, special=True)
    for value in settings.get("additional_special_tokens") or ():
        text = token_text(value)
        if text is not None:
            tokens[text] = _added(library, text, value, special=True)
    for text, index in (
        read_object(files["added_tokens.json"]) if "added_tokens.json" in files else {}
    ).items():
        ids[text] = index
        tokens.setdefault(text, _added(library, text, text, special=False))
    decoder = settings.get("added_tokens_decoder")
    for index, value in (decoder if isinstance(decoder, Mapping) else {}).items():
        text = token_text(value)
        if text is not None and str(index).isdecimal():
            ids[text] = int(index)
            tokens[text] = _added(library, text, value, special=bool(value.get("special")))
    backend.add_tokens(list(_usual(library, backend, tokens)))
    # Known tokens keep their ids; new ones are numbered in the order in which they are added.
    for text in sorted(tokens, key=lambda text: ids.get(text, -1)):
        if text in ids or backend.token_to_id(text) is not None:
            backend.add_tokens([tokens[text]])
    folder = next(iter(files.values())).parent
    for text, index in ids.items():
        if backend.token_to_id(text) != index:
            raise HFError(
                f"{folder}: the token {text!r} should have the id {index!r}, but it "
                f"has {backend.token_to_id(text)}. The tokenizer files do not belong together."
            )
    return backend


def _usual(library: Any, backend: Any, tokens: Mapping[str, Any]) -> Any:
    """Return the special tokens that the vocabulary has although no file names them."""
    for text in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "<pad>", "</s>", "<unk>", "<mask>"):
        if text not in tokens and backend.token_to_id(text) is not None:
            # The space before a mask is a part of it where spaces are a part of the tokens.
            yield library.AddedToken(text, special=True, normalized=False, lstrip=text == "<mask>")


def _added(library: Any, text: str, value: Any, *, special: bool) -> Any:
    given = value if isinstance(value, Mapping) else {}
    flags = {name: bool(given.get(name, False)) for name in ("lstrip", "rstrip", "single_word")}
    if not given and text == "<mask>":
        flags["lstrip"] = True
    return library.AddedToken(text, special=special, normalized=bool(given.get("normalized", False)), **flags)
