"""Tokenizers from the files of the time before tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flodl.core import HFError
from flodl.core.files import read_limited

from ..files.json_file import read_object
from .sentencepiece_file import UNIGRAM, SentencePieceModel
from .special_tokens import token_text

_MAX_BYTES = 1 << 28
_INSTEAD = "Save a tokenizer.json with transformers and put it into the folder."


def word_piece(library: Any, path: Path, settings: Mapping[str, Any]) -> Any:
    """Build BERT's tokenizer: a vocabulary with a piece per line, whose continuations start with ##."""
    unk, cls, sep = (_special(settings, name, f"[{name.upper()}]") for name in ("unk", "cls", "sep"))
    vocabulary = {line: index for index, line in enumerate(_lines(path))}
    _need(path, vocabulary, unk, cls, sep)
    backend = library.Tokenizer(library.models.WordPiece(vocabulary, unk_token=unk))
    backend.normalizer = library.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=_flag(settings, "tokenize_chinese_chars", True),
        strip_accents=_flag(settings, "strip_accents", None),
        lowercase=_flag(settings, "do_lower_case", not _is_cased(vocabulary)),
    )
    backend.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    backend.decoder = library.decoders.WordPiece(prefix="##")
    backend.post_processor = _bert_template(library, cls, sep, vocabulary)
    return backend


def byte_level(library: Any, vocab: Path, merges: Path, settings: Mapping[str, Any]) -> Any:
    """Build RoBERTa's tokenizer: byte-pair encoding of bytes."""
    vocabulary = _vocabulary(vocab)
    cls, sep = _special(settings, "cls", "<s>"), _special(settings, "sep", "</s>")
    _need(vocab, vocabulary, cls, sep)
    prefix_space = bool(_flag(settings, "add_prefix_space", False))
    backend = library.Tokenizer(
        library.models.BPE(
            vocab=vocabulary,
            merges=_merges(merges),
            continuing_subword_prefix="",
            end_of_word_suffix="",
            fuse_unk=False,
        )
    )
    backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = library.decoders.ByteLevel()
    backend.post_processor = library.processors.RobertaProcessing(
        (sep, vocabulary[sep]),
        (cls, vocabulary[cls]),
        trim_offsets=bool(_flag(settings, "trim_offsets", True)),
        add_prefix_space=prefix_space,
    )
    return backend


def unigram(
    library: Any, path: Path, model: SentencePieceModel, settings: Mapping[str, Any], *, model_type: str
) -> Any:
    """Build the tokenizer of ALBERT, XLM-RoBERTa or DeBERTa: a SentencePiece model of the unigram kind."""
    if model.algorithm != UNIGRAM:
        raise HFError(
            f"{path} is a SentencePiece model with the algorithm {model.algorithm}; flodl can build a "
            f"tokenizer from a unigram model (1). {_INSTEAD}"
        )
    if model_type not in _FAMILIES:
        raise HFError(
            f"{path} is a SentencePiece model, from which flodl can build a tokenizer for "
            f"{', '.join(_FAMILIES)}, but the model type is {model_type!r}. {_INSTEAD}"
        )
    return _FAMILIES[model_type](library, path, model, settings)


def _albert(library: Any, path: Path, model: SentencePieceModel, settings: Mapping[str, Any]) -> Any:
    normalizers = library.normalizers
    steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not _flag(settings, "keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if _flag(settings, "do_lower_case", True):
        steps.append(normalizers.Lowercase())
    # A number with a comma is split, whatever its score.
    pieces = [
        (piece.text, piece.score - (100 if _ends_number_with_comma(piece.text) else 0))
        for piece in model.pieces
    ]
    backend = _sentence_pieces(library, model, pieces, model.unk_id, [*steps, *_charsmap(library, model)])
    backend.pre_tokenizer = library.pre_tokenizers.Sequence(
        [library.pre_tokenizers.WhitespaceSplit(), _metaspace(library)]
    )
    return _with_bert_template(library, path, backend, settings)


def _deberta(library: Any, path: Path, model: SentencePieceModel, settings: Mapping[str, Any]) -> Any:
    normalizers = library.normalizers
    steps = [normalizers.Lowercase()] if _flag(settings, "do_lower_case", False) else []
    steps += [normalizers.Strip(), *_charsmap(library, model)]
    steps.append(normalizers.Replace(library.Regex(" {2,}"), " "))
    pieces = [(piece.text, piece.score) for piece in model.pieces]
    backend = _sentence_pieces(library, model, pieces, model.unk_id, steps)
    punctuation = library.pre_tokenizers.Punctuation(behavior="isolated")
    by_punctuation = [punctuation] if _flag(settings, "split_by_punct", False) else []
    backend.pre_tokenizer = library.pre_tokenizers.Sequence([*by_punctuation, _metaspace(library)])
    # The mask is not a piece of the model; it has the first id after them.
    backend.add_tokens([library.AddedToken(_special(settings, "mask", "[MASK]"), special=True)])
    return _with_bert_template(library, path, backend, settings)


def _xlm_roberta(library: Any, path: Path, model: SentencePieceModel, settings: Mapping[str, Any]) -> Any:
    bos, pad = _special(settings, "bos", "<s>"), _special(settings, "pad", "<pad>")
    eos, unk = _special(settings, "eos", "</s>"), _special(settings, "unk", "<unk>")
    # fairseq has its own order of the special tokens, and adds the mask after the last piece.
    pieces = [(bos, 0.0), (pad, 0.0), (eos, 0.0), (unk, 0.0)]
    pieces += [(piece.text, piece.score) for piece in model.pieces[3:]]
    pieces.append((_special(settings, "mask", "<mask>"), 0.0))
    backend = _sentence_pieces(library, model, pieces, 3, _charsmap(library, model))
    backend.pre_tokenizer = library.pre_tokenizers.Sequence(
        [library.pre_tokenizers.WhitespaceSplit(), _metaspace(library)]
    )
    backend.post_processor = library.processors.TemplateProcessing(
        single=[bos, "$A", eos],
        pair=[bos, "$A", eos, eos, "$B", eos],
        special_tokens=[(bos, 0), (eos, 2)],
    )
    return backend


_FAMILIES = {"albert": _albert, "deberta-v2": _deberta, "xlm-roberta": _xlm_roberta}


def _sentence_pieces(
    library: Any, model: SentencePieceModel, pieces: list[tuple[str, float]], unk_id: int, steps: list[Any]
) -> Any:
    backend = library.Tokenizer(library.models.Unigram(pieces, unk_id=unk_id, byte_fallback=False))
    if steps:
        backend.normalizer = library.normalizers.Sequence(steps)
    backend.decoder = library.decoders.Metaspace(replacement="▁", prepend_scheme="always")
    backend.add_tokens(
        [
            library.AddedToken(piece.text, normalized=False, special=piece.is_control)
            for piece in model.pieces
            if (piece.is_control or piece.is_user_defined) and piece.text
        ]
    )
    return backend


def _is_cased(vocabulary: Mapping[str, int]) -> bool:
    """Whether a vocabulary has tokens with capital letters, which texts in lower case never contain."""
    return any(token != token.lower() and not token.startswith(("[", "<")) for token in vocabulary)


def _charsmap(library: Any, model: SentencePieceModel) -> list[Any]:
    return [library.normalizers.Precompiled(model.charsmap)] if model.charsmap else []


def _metaspace(library: Any) -> Any:
    return library.pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")


def _ends_number_with_comma(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def _with_bert_template(library: Any, path: Path, backend: Any, settings: Mapping[str, Any]) -> Any:
    cls, sep = _special(settings, "cls", "[CLS]"), _special(settings, "sep", "[SEP]")
    vocabulary = backend.get_vocab()
    _need(path, vocabulary, cls, sep)
    backend.post_processor = _bert_template(library, cls, sep, vocabulary)
    return backend


def _bert_template(library: Any, cls: str, sep: str, vocabulary: Mapping[str, int]) -> Any:
    return library.processors.TemplateProcessing(
        single=[f"{cls}:0", "$A:0", f"{sep}:0"],
        pair=[f"{cls}:0", "$A:0", f"{sep}:0", "$B:1", f"{sep}:1"],
        special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
    )


def _special(settings: Mapping[str, Any], name: str, usual: str) -> str:
    return token_text(settings.get(f"{name}_token")) or usual


def _flag(settings: Mapping[str, Any], name: str, usual: bool | None) -> bool | None:
    value = settings.get(name, usual)
    return value if isinstance(value, bool) else usual


def _vocabulary(path: Path) -> dict[str, int]:
    vocabulary = read_object(path)
    for token, index in vocabulary.items():
        if type(index) is not int or not 0 <= index < 2**32:
            raise HFError(
                f"{path} has the id {index!r} for the token {token!r}; expected an integer of at least 0."
            )
    return vocabulary


def _merges(path: Path) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(_lines(path), 1):
        if not line or line.startswith("#version"):
            continue
        first, _, second = line.partition(" ")
        if not first or not second or " " in second:
            raise HFError(
                f"{path}, line {number}: expected two pieces with a space between them, got {line!r}."
            )
        pairs.append((first, second))
    return pairs


def _need(path: Path, vocabulary: Mapping[str, int], *tokens: str) -> None:
    missing = [token for token in tokens if token not in vocabulary]
    if missing:
        raise HFError(
            f"{path} does not contain the special token {missing[0]!r} (it has {len(vocabulary)} tokens). "
            "The file is damaged, or tokenizer_config.json names the wrong token."
        )


def _lines(path: Path) -> list[str]:
    """Return the lines of a vocabulary; only a newline ends one, since a piece may be any character."""
    try:
        text = read_limited(path, max_bytes=_MAX_BYTES).decode("utf-8")
    except OSError as error:
        raise HFError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError:
        raise HFError(f"{path} is not UTF-8 text. The file is damaged: download it again.") from None
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines
