"""Small tokenizers of every kind, written as the files that a checkpoint has."""

from __future__ import annotations

import json
import struct
from pathlib import Path

SENTENCES = """
The film is a moving and funny story about a boy from Paris . John Smith lives in New York City , where Angela
Merkel met Barack Obama in 2016 . What is the capital of France ? It is Paris . unbelievable playing players
walked walking the quick brown fox jumps over the lazy dog !
"""
TEXT = SENTENCES.split()
PIECES = ["un", "believ", "##able", "##ing", "##s", "##ed", "play", "walk", "##a", "##e", "##o", "##n", "##r"]
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def words() -> list[str]:
    return list(dict.fromkeys(word.lower() for word in TEXT))


def word_piece(folder: Path, **settings: object) -> Path:
    """Write vocab.txt, as old checkpoints of BERT have it."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    known = [
        word for word in words() if word not in ("unbelievable", "playing", "players", "walked", "walking")
    ]
    tokens = list(
        dict.fromkeys([*BERT_SPECIAL, *known, *PIECES, *letters, *("##" + letter for letter in letters)])
    )
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def byte_level(folder: Path, **settings: object) -> Path:
    """Write vocab.json and merges.txt, as old checkpoints of RoBERTa have them."""
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir(parents=True, exist_ok=True)
    trained = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(
        [" ".join(TEXT)] * 3, vocab_size=400, special_tokens=special, show_progress=False
    )
    trained.save_model(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def tokenizer_json(folder: Path, source: Path, model_type: str) -> Path:
    """Write the tokenizer.json of a folder with older files."""
    from flodl.hf.text import Tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    Tokenizer.from_directory(source, config={"model_type": model_type}).backend.save(
        str(folder / "tokenizer.json")
    )
    settings = (source / "tokenizer_config.json").read_text()
    (folder / "tokenizer_config.json").write_text(settings)
    return folder


def sentence_pieces(start: list[tuple[str, int]], *, algorithm: int = 1, unk_id: int = 0) -> bytes:
    """Return a SentencePiece model of the words; `start` are its first pieces with their kinds."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = [(text, 0.0, kind) for text, kind in start]
    pieces += [("▁" + word, -2.0 - index / 100, 1) for index, word in enumerate(words())]
    pieces += [("▁", -4.0, 1), *((letter, -6.0, 1) for letter in [*letters, "1", ","]), ("1,", -3.0, 1)]
    message = b"".join(
        _field(1, _field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + _number(3, kind))
        for text, score, kind in pieces
    )
    trainer = _number(3, algorithm) + _number(40, unk_id)
    return message + _field(2, trainer) + _field(3, _field(1, b"identity"))


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)
