"""Masked language modeling: the most probable tokens for each mask of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flodl.core import HFError

from ..text.tokenizer import Tokenizer
from .results import Fill
from .runner import Rows, Runner, as_list, check_top_k

if TYPE_CHECKING:
    from tokenizers import Encoding


def fill_masks(
    runner: Runner,
    texts: str | Sequence[str],
    *,
    top_k: int = 5,
    targets: str | Sequence[str] | None = None,
) -> list[Any]:
    """Fill the masks of a text or of each text of a list.

    The result of a text is a list of `Fill`, the best first; a text with several masks has one such list per
    mask, each filled alone. With `targets`, only these tokens are considered.
    """
    tokenizer = runner.tokenizer
    given, single = as_list(texts)
    check_top_k(top_k)
    if tokenizer.mask.id is None:
        raise HFError("the tokenizer has no mask token, so there is nothing to fill.")
    ids = None if targets is None else target_ids(tokenizer, targets)
    encodings = tokenizer.encode(given)
    for index, encoding in enumerate(encodings):
        if tokenizer.mask.id not in encoding.ids:
            where = "after truncation " if encoding.overflowing else ""
            raise HFError(
                f"text {index} {where}contains no mask: {given[index]!r:.80}. Write {tokenizer.mask.text} "
                "where a token is to be filled in."
            )

    def interpret(rows: Rows) -> list[list[Any]]:
        return _interpret(tokenizer, rows, top_k, ids)

    found = runner.run(encodings, interpret, token=tokenizer.mask.id)
    return found[0] if single else found


def target_ids(tokenizer: Tokenizer, targets: str | Sequence[str]) -> list[int]:
    """Return the ids of the targets, each of which must be a single token."""
    names = [targets] if isinstance(targets, str) else list(targets)
    if not names:
        raise HFError("targets is empty; expected at least one token.")
    found = []
    for name in names:
        index = tokenizer.backend.token_to_id(name)
        if index is None:
            pieces = tokenizer.encode([name], special_tokens=False)[0]
            if len(pieces) != 1 or pieces.ids[0] == tokenizer.special.unk.id:
                shown = ", ".join(map(repr, pieces.tokens)) or "nothing"
                raise HFError(
                    f"the target {name!r} is not a token of the model: it is split into {shown}. "
                    "Expected a word that is a single token; some models need a space before it."
                )
            index = pieces.ids[0]
        found.append(index)
    return list(dict.fromkeys(found))


def _interpret(tokenizer: Tokenizer, rows: Rows, top_k: int, targets: list[int] | None) -> list[list[Any]]:
    where = rows.inputs["input_ids"].eq(tokenizer.mask.id or 0).nonzero()
    logits: Tensor = rows.output
    scores = torch.softmax(logits if logits.dtype == torch.float64 else logits.float(), dim=-1)
    if targets is not None:
        scores = scores[:, targets]
    values, indices = scores.topk(min(top_k, scores.shape[-1]))
    if targets is not None:
        indices = torch.tensor(targets, device=indices.device)[indices]
    results: list[list[Any]] = [[] for _ in rows.encodings]
    for row, best, tokens in zip(where[:, 0].tolist(), values.tolist(), indices.tolist()):
        results[row].append(list(zip(tokens, best)))
    return [_fills(tokenizer, encoding, masks) for encoding, masks in zip(rows.encodings, results)]


def _fills(
    tokenizer: Tokenizer, encoding: Encoding, masks: Sequence[Sequence[tuple[int, float]]]
) -> list[Any]:
    ids = encoding.ids
    places = [index for index, token in enumerate(ids) if token == tokenizer.mask.id]
    found = []
    for place, best in zip(places, masks):
        fills = []
        for token, score in best:
            filled = [*ids[:place], token, *ids[place + 1 :]]
            # The other masks are special tokens too, and have to stay visible.
            text = tokenizer.decode(filled, skip_special_tokens=len(places) == 1)
            fills.append(Fill(token, tokenizer.decode([token], skip_special_tokens=False), score, text))
        found.append(fills)
    return found[0] if len(found) == 1 else found
