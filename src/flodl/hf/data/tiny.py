"""A tiny checkpoint with random weights, to try things out without a download."""

from __future__ import annotations

import os
import re
import string
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flodl.core import HFError
from flodl.core.files import expand_user
from flodl.core.formats import a_type
from flodl.core.output_files import check_path_type

from ..auto import AUTO
from ..heads import Head
from ..models import PretrainedModel
from ..text.tokenizer import Tokenizer
from ..usage.calls import explained
from ..usage.values import check_listed, integer

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LETTERS = string.ascii_lowercase + string.digits
_WORD = re.compile(r"\w+|[^\w\s]")


@explained("Write create_tiny(folder, texts, head='seqcls', labels=['negative', 'positive']).")
def create_tiny(
    folder: str | os.PathLike[str],
    texts: Iterable[str],
    *,
    head: str = "mlm",
    labels: Sequence[str] | None = None,
    vocab_size: int = 4000,
    hidden_size: int = 64,
    layers: int = 2,
    max_length: int = 128,
    dropout: float = 0.1,
    seed: int = 0,
) -> PretrainedModel:
    """Write a tiny BERT with random weights, with the words of some texts as its vocabulary, and return it.

    It runs everywhere and knows nothing: use it for tests and first steps, a pretrained model for results.
    `head` is "base", "seqcls", "tokcls", "qa" or "mlm". The folder must be new or empty.
    """
    try:
        kind = Head(head)
    except ValueError:
        heads = ", ".join(repr(known.value) for known in Head)
        raise HFError(f"head={head!r}; expected one of {heads}.") from None
    check_path_type(folder, what="folder", example="tiny", error=HFError)
    check_listed(texts, "texts", "['a moving film', 'a dull story']")
    vocab_size = integer(vocab_size, "vocab_size", at_least=1)
    hidden_size = integer(hidden_size, "hidden_size", at_least=1)
    tokens = _vocabulary(texts, vocab_size)
    config: dict[str, Any] = {
        "model_type": "bert",
        "vocab_size": len(tokens),
        "hidden_size": hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": max(hidden_size // 32, 1),
        "intermediate_size": 4 * hidden_size,
        "max_position_embeddings": max_length,
        "type_vocab_size": 2,
        "pad_token_id": 0,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    auto = AUTO[kind]
    target = expand_user(folder)
    if target.is_dir() and any(target.iterdir()):
        raise HFError(
            f"{folder} already exists and is not empty. Choose a new folder, or load the model in it with "
            "from_pretrained."
        )
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
        (Path(work) / "tokenizer_config.json").write_text('{"do_lower_case": true}\n', encoding="utf-8")
        model: PretrainedModel = auto.from_config(config, labels=labels, seed=seed)
        model.tokenizer = Tokenizer.from_directory(work, config=config)
        model.export(folder)
    created: PretrainedModel = auto.from_pretrained(folder)
    return created


def _vocabulary(texts: Iterable[str], size: int) -> list[str]:
    """Return the most frequent words, and the letters that all others are spelled with."""
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise HFError(f"text {index} is {a_type(text)} ({text!r:.60}); expected a string.")
    words = Counter(word for text in texts for word in _WORD.findall(text.lower()))
    letters = [*_LETTERS, *(f"##{letter}" for letter in _LETTERS)]
    chosen = [word for word, _ in sorted(words.items(), key=lambda item: (-item[1], item[0]))]
    tokens = list(dict.fromkeys([*_SPECIAL, *letters, *chosen]))
    return tokens[: max(size, len(_SPECIAL) + len(letters))]
