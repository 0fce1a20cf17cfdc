"""Tests of random masks: how many, which, and that they depend on the position alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flodl.core import HFError
from flodl.data import Loader

from ..tiny_models import TEXTS, tiny


def epoch(dataset, batch_size: int, **options) -> list[tuple[list[int], list[int]]]:
    """Return the ids and labels of each text, in the order of the epoch."""
    rows = []
    for inputs, labels in Loader(dataset, batch_size, **options):
        for ids, mask, targets in zip(inputs["input_ids"], inputs["attention_mask"].bool(), labels):
            rows.append((ids[mask].tolist(), targets[mask].tolist()))
    return rows


def test_fifteen_percent_are_masked_and_most_of_them_replaced(tmp_path: Path) -> None:
    model = tiny("mlm", tmp_path)
    dataset = model.dataset([" ".join(TEXTS[:6])] * 500)
    rows = epoch(dataset, 50, seed=1)
    special = {model.tokenizer.special.cls.id, model.tokenizer.special.sep.id, model.tokenizer.special.unk.id}
    count = sum(label not in special for ids, labels in rows for label in labels if label != -100)
    masked = [(token, label) for row in rows for token, label in zip(*row) if label != -100]
    assert count == len(masked)
    plain = [
        token for text in range(500) for token in dataset.tokens.row(text).tolist() if token not in special
    ]
    assert abs(len(masked) / len(plain) - 0.15) < 0.01
    replaced = sum(token == model.tokenizer.mask.id for token, _ in masked) / len(masked)
    kept = sum(token == label for token, label in masked) / len(masked)
    assert abs(replaced - 0.8) < 0.02
    assert abs(kept - 0.1) < 0.02


def test_tokens_that_are_not_masked_stay(tmp_path: Path) -> None:
    dataset = tiny("mlm", tmp_path).dataset(TEXTS)
    for index, (ids, labels) in enumerate(epoch(dataset, 3, shuffle=False, seed=2)):
        original = dataset.tokens.row(index).tolist()
        assert [label if label != -100 else token for token, label in zip(ids, labels)] == original
        assert any(label != -100 for label in labels)  # also in a text with one word


def test_masks_do_not_depend_on_the_batch_but_on_the_epoch(tmp_path: Path) -> None:
    dataset = tiny("mlm", tmp_path).dataset(TEXTS * 4)
    assert epoch(dataset, 3, seed=5) == epoch(dataset, 8, seed=5)
    assert epoch(dataset, 8, seed=5) != epoch(dataset, 8, seed=6)
    loader = Loader(dataset, 8, shuffle=False, seed=5)
    first, second = ([labels for _, labels in loader] for _ in range(2))
    assert not all(map(torch.equal, first, second))


def test_padding_on_the_left_gives_the_same_masks(tmp_path: Path) -> None:
    model = tiny("mlm", tmp_path)
    right = epoch(model.dataset(TEXTS), 4, seed=5)
    model.tokenizer.padding_side = "left"
    assert epoch(model.dataset(TEXTS), 4, seed=5) == right


def test_long_texts_are_split_and_no_token_is_lost(tmp_path: Path) -> None:
    model = tiny("mlm", tmp_path)
    text = " ".join(TEXTS)
    dataset = model.dataset([text], max_length=16)
    whole = model.tokenizer.encode([text], max_length=64)[0]
    rest = sum(len(part) - 2 for part in whole.overflowing)
    assert len(dataset) > 3
    assert int(dataset.lengths.sum()) - 2 * len(dataset) == len(whole) - 2 + rest


def test_a_wrong_probability_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HFError, match="mask_probability=2"):
        tiny("mlm", tmp_path).dataset(TEXTS, mask_probability=2)
