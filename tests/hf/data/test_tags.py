"""Tests of tags of words as labels of tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from flodl.core import HFError
from flodl.hf import label_names

from ..tiny_models import tiny

WORDS = [["unbelievable", "John", "Smith"], ["Paris", "!"]]
TAGS = [["O", "B-PER", "I-PER"], ["B-LOC", "O"]]
NAMES = ["O", "B-LOC", "B-PER", "I-PER"]


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_the_first_piece_of_a_word_has_its_tag(tmp_path: Path, model_type: str) -> None:
    assert label_names(TAGS) == NAMES
    model = tiny("tokcls", tmp_path, model_type=model_type, labels=NAMES)
    inputs, labels = model.dataset(WORDS, TAGS).batch([0, 1])
    encodings = model.tokenizer.encode(WORDS, split_into_words=True)
    for row, encoding, tags in zip(labels, encodings, TAGS):
        seen = set()
        for label, word in zip(row.tolist(), encoding.word_ids):
            first = word is not None and word not in seen
            assert label == (NAMES.index(tags[word]) if first else -100)
            seen.add(word)
        assert set(row[len(encoding) :].tolist()) <= {-100}
    assert labels.shape == inputs["input_ids"].shape
    assert model.compute_loss(inputs, labels).isfinite()


def test_all_pieces_may_have_the_tag(tmp_path: Path) -> None:
    model = tiny("tokcls", tmp_path, labels=NAMES)
    _, labels = model.dataset(WORDS, TAGS, label_all_pieces=True).batch([0])
    words = model.tokenizer.encode(WORDS[:1], split_into_words=True)[0].word_ids
    expected = [-100 if word is None else NAMES.index(TAGS[0][word]) for word in words]
    assert labels[0].tolist() == expected
    assert expected.count(0) > 1


def test_tags_may_be_ids(tmp_path: Path) -> None:
    model = tiny("tokcls", tmp_path, labels=NAMES)
    ids = [[NAMES.index(tag) for tag in tags] for tags in TAGS]
    assert model.dataset(WORDS, ids).batch([0, 1])[1].equal(model.dataset(WORDS, TAGS).batch([0, 1])[1])


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (TAGS[:1], "2 texts and 1 lists of tags"),
        ([["O"], ["O", "O"]], "text 0 has 3 words and 1 tags"),
        ([["O", "B-PRE", "O"], ["O", "O"]], "the tag of word 1 of text 0 is 'B-PRE'.*Did you mean 'B-PER'"),
        ([["O", 9, "O"], ["O", "O"]], r"the tag of word 1 of text 0 is 9 \(int\)"),
        ([["O", [], "O"], ["O", "O"]], r"the tag of word 1 of text 0 is \[\] \(list\)"),
    ],
)
def test_wrong_tags_are_named(tmp_path: Path, tags, message) -> None:
    with pytest.raises(HFError, match=message):
        tiny("tokcls", tmp_path, labels=NAMES).dataset(WORDS, tags)


def test_texts_that_are_not_split_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(HFError, match="text 0 is a str; expected a list of words"):
        tiny("tokcls", tmp_path, labels=NAMES).dataset(["John Smith"], [["O", "O"]])


def test_an_integer_tag_that_is_the_name_of_another_tag_is_an_error(tmp_path: Path) -> None:
    model = tiny("tokcls", tmp_path, labels=["1", "2", "3"])
    words = [["John", "Smith"]]
    _, labels = model.dataset(words, [["2", "3"]]).batch([0])
    assert {1, 2} <= set(labels.flatten().tolist())
    with pytest.raises(
        HFError, match=r"the tag of word 1 of text 0 is 2 \(int\)\. The label '2' has the id 1"
    ):
        model.dataset(words, [["2", 2]])
