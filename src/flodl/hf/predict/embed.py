"""Sentence embeddings: one vector per text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flodl.core import HFError
from flodl.core.formats import a_type

from ..text.tokenizer import Tokenizer
from .pooling import Pooling
from .runner import Rows, Runner, as_list


def embed_texts(
    runner: Runner,
    texts: str | Sequence[str],
    *,
    pooling: Pooling | None = None,
    prompt_name: str | None = None,
    prompt: str | None = None,
    normalize: bool | None = None,
) -> Tensor:
    """Return a vector [D] for a text, or a matrix [N, D] for a list of texts, on the CPU.

    A model may come with named prompts, such as "query"; `prompt` is put in front of the texts as it is.
    `normalize` overrides the files of the model.
    """
    pooling = Pooling() if pooling is None else pooling
    if not isinstance(pooling, Pooling):
        raise HFError(
            f"pooling={pooling!r}; expected a Pooling of flodl.hf.predict, such as Pooling(modes=('cls',))."
        )
    if normalize not in (None, True, False):
        raise HFError(f"normalize={normalize!r}; expected True or False, or None for what the model says.")
    given, single = as_list(texts)
    wrong = next((index for index, text in enumerate(given) if not isinstance(text, str)), None)
    if wrong is not None:
        raise HFError(f"text {wrong} is {a_type(given[wrong])}; expected a string.")
    prefix = pooling.prompt(prompt_name) if prompt is None else prompt
    prepared = [(prefix + text).strip() for text in given]
    if pooling.lower_case:
        prepared = [text.lower() for text in prepared]
    skipped = 0 if pooling.include_prompt or not prefix else prompt_length(runner.tokenizer, prefix)
    modes = pooling if normalize is None else replace(pooling, normalize=normalize)

    def interpret(rows: Rows) -> list[Tensor]:
        mask = rows.inputs["attention_mask"]
        if skipped:
            # Counted from the first token that is not padding.
            mask = mask * (mask.cumsum(dim=1) > skipped)
        return list(modes.pool(rows.output, mask).cpu())

    limit = runner.tokenizer.max_length
    if pooling.max_length is not None:
        limit = pooling.max_length if limit is None else min(limit, pooling.max_length)
    vectors = runner.run_texts(prepared, None, interpret, max_length=limit)
    if single:
        return vectors[0].clone()
    return torch.stack(vectors) if vectors else torch.empty(0, 0)


def prompt_length(tokenizer: Tokenizer, prompt: str) -> int:
    """Return the number of tokens that a prompt occupies, with the special token before it."""
    ids = tokenizer.encode([prompt.strip()])[0].ids
    return len(ids) - (1 if ids and ids[-1] == tokenizer.special.sep.id else 0)
