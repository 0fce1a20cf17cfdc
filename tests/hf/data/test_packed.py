"""Tests of packed batches of real and of random texts: slots, labels and what is wasted."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from flodl.data import Loader
from flodl.hf.data.layout import Layout
from flodl.hf.data.packed import Slots, why_padded
from flodl.hf.heads import Head

from ..predict.pipelines import data
from ..tiny_models import TEXTS, tiny

CUDA = torch.device("cuda")


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert"])
def test_a_packed_batch_has_the_sentences_of_the_padded_one(tmp_path: Path, model_type: str) -> None:
    model = tiny("seqcls", tmp_path, model_type=model_type)
    packed = Loader(model.dataset(TEXTS, [0, 1] * 4, pack=True), 4, shuffle=False)
    padded = Loader(model.dataset(TEXTS, [0, 1] * 4, pack=False), 4, shuffle=False)
    for (inputs, labels), (rows, expected) in zip(packed, padded, strict=True):
        ends = inputs["cu_seqlens"].tolist()
        for index, (ids, mask) in enumerate(zip(rows["input_ids"], rows["attention_mask"].bool())):
            sentence = slice(ends[index], ends[index + 1])
            assert torch.equal(inputs["input_ids"][0, sentence], ids[mask])
            first = 2 if model_type == "roberta" else 0
            assert inputs["position_ids"][0, sentence].tolist() == list(range(first, first + int(mask.sum())))
        assert torch.equal(labels, expected)
        assert ("token_type_ids" in inputs) == (model_type == "bert")


def test_rows_without_a_sentence_have_the_label_minus_100(tmp_path: Path) -> None:
    model = tiny("seqcls", tmp_path)
    (_, full), (_, rest) = Loader(model.dataset(TEXTS, [1] * 8, pack=True), 5, shuffle=False)
    assert full.tolist() == [1] * 5
    assert rest.tolist() == [1] * 3 + [-100] * 2
    answers = [None] * 8
    qa = tiny("qa", tmp_path / "qa").dataset(TEXTS, TEXTS, answers, max_length=64, pack=True)
    _, labels = list(Loader(qa, 5, shuffle=False))[1]
    assert labels["index"].tolist() == [5, 6, 7, -1, -1]
    assert labels["start_positions"].tolist() == [0, 0, 0, -100, -100]


def test_masks_of_packed_and_padded_texts_are_equal(tmp_path: Path) -> None:
    model = tiny("mlm", tmp_path)
    packed, padded = (Loader(model.dataset(TEXTS, pack=pack), 4, seed=3) for pack in (True, False))
    for (inputs, labels), (rows, expected) in zip(packed, padded, strict=True):
        used = int(rows["attention_mask"].sum())
        mask = rows["attention_mask"].bool()
        assert torch.equal(inputs["input_ids"][0, :used], rows["input_ids"][mask])
        assert torch.equal(labels[0, :used], expected[mask])
        assert (labels[0, used:] == -100).all()


def test_labels_of_tokens_follow_the_tokens(tmp_path: Path) -> None:
    model = tiny("tokcls", tmp_path)
    words = [text.split() for text in TEXTS]
    tags = [[index % 2 for index, _ in enumerate(text)] for text in words]
    packed, padded = (Loader(model.dataset(words, tags, pack=pack), 4, seed=3) for pack in (True, False))
    for (_, labels), (rows, expected) in zip(packed, padded, strict=True):
        mask = rows["attention_mask"].bool()
        assert torch.equal(labels[0, : int(mask.sum())], expected[mask])


def test_a_batch_goes_to_the_smallest_slot_that_fits() -> None:
    slots = Slots.choose(np.random.default_rng(0).integers(5, 60, 2000), 32, 512)
    sizes = [slot.tokens for slot in slots.slots]
    assert 2 <= len(sizes) <= 8
    assert sizes == sorted(sizes)
    assert slots.smallest(sizes[0]).tokens == sizes[0]
    assert slots.smallest(sizes[0] + 1).tokens == sizes[1]
    # A batch that is larger than all, and the small one at the end of an epoch, get a slot of their own.
    assert slots.smallest(sizes[-1] + 1).tokens == sizes[-1] + slots.multiple
    assert slots.smallest(100).tokens == 128
    assert {slot.sequences for slot in slots.slots} == {32}
    assert {slot.longest for slot in slots.slots} == {64}


def test_long_texts_fit_however_small_the_batch() -> None:
    slots = Slots.choose(np.array([3, 500, 4]), 1, 512)
    assert slots.smallest(500).tokens >= slots.smallest(3).longest == 512


@pytest.mark.parametrize("name", ["mr-polarity", "banking77"])
@pytest.mark.parametrize(("batch_size", "most"), [(32, 0.08), (256, 0.04)])
def test_little_is_wasted_on_real_texts(name: str, batch_size: int, most: float) -> None:
    lengths = real_lengths(name)
    slots = Slots.choose(lengths, batch_size, 512)
    assert len(slots.slots) <= 8
    assert slots.waste < most
    needed = used = 0
    loader = Loader(torch.from_numpy(lengths), batch_size, seed=11)
    for _ in range(3):
        for batch in loader:
            needed += int(batch.sum())
            used += slots.smallest(int(batch.sum())).tokens
    assert used / needed - 1 < most


def real_lengths(name: str) -> np.ndarray:
    """Return about as many tokens per text as the tokenizer of BERT gives: words and punctuation, and two."""
    if name == "banking77":
        with data("banking77/train.csv").open(encoding="utf-8") as file:
            texts = [row["text"] for row in csv.DictReader(file)]
    else:
        files = [data(f"mr-polarity/rt-polarity.{kind}") for kind in ("neg", "pos")]
        texts = [line for file in files for line in file.read_text("latin-1").splitlines()]
    return np.array([len(re.findall(r"\w{1,8}|[^\w\s]", text)) + 2 for text in texts])


def layout(**changes) -> Layout:
    values = {"head": Head.MASKED_LM, "model_type": "bert", "pad_id": 0, "pads_left": False}
    values |= {
        "has_token_types": True,
        "first_position": 0,
        "num_positions": 512,
        "vocab_size": 400,
        "dtype": torch.float32,
    }
    return Layout(**{**values, **changes})


def test_packing_is_automatic_where_it_gains_something() -> None:
    assert "gains nothing on cpu" in why_padded(layout(), torch.device("cpu"), "bf16")
    assert "computes in float32" in why_padded(layout(), CUDA, "fp32")
    assert "has a bias" in why_padded(layout(model_type="deberta-v2"), CUDA, "bf16")
    assert why_padded(layout(), CUDA, "bf16") == ""
    assert why_padded(layout(dtype=torch.bfloat16), CUDA, None) == ""


def test_the_loader_says_why(tmp_path: Path) -> None:
    model = tiny("seqcls", tmp_path)
    assert Loader(model.dataset(TEXTS, [0] * 8), 4).reason == (
        "texts are batched on the host: each batch is padded to its longest text; "
        "packing gains nothing on cpu"
    )
    assert "pack=False was requested" in Loader(model.dataset(TEXTS, [0] * 8, pack=False), 4).reason
    assert (
        "packed on the host into a slot of 96 tokens"
        in Loader(model.dataset(TEXTS, [0] * 8, pack=True), 8).reason
    )
