"""Tests of data sets from raw text: tokens, labels and batches."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from flodl.core import HFError
from flodl.data import Loader
from flodl.hf import label_names

from ..tiny_models import TEXTS, tiny

LABELS = ["pos", "neg"] * 4


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert"])
def test_a_padded_batch_is_what_the_tokenizer_returns(tmp_path: Path, model_type: str) -> None:
    model = tiny("seqcls", tmp_path, model_type=model_type, labels=["neg", "pos"])
    inputs, labels = model.dataset(TEXTS, LABELS).batch([5, 0, 3])
    expected = model.tokenizer([TEXTS[5], TEXTS[0], TEXTS[3]])
    assert inputs.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(inputs[name], values), name
    assert labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_on_the_side_of_the_tokenizer(tmp_path: Path, side: str) -> None:
    model = tiny("seqcls", tmp_path)
    model.tokenizer.padding_side = side
    pairs = [(text, text[::-1]) for text in TEXTS]
    inputs, _ = model.dataset(pairs, [0, 1] * 4).batch(range(8))
    expected = model.tokenizer(*zip(*pairs))
    for name, values in expected.items():
        assert torch.equal(inputs[name], values), name


def test_second_texts_may_be_a_list_of_their_own(tmp_path: Path) -> None:
    model = tiny("seqcls", tmp_path)
    one = model.dataset(TEXTS, [0] * 8, pairs=TEXTS).batch([2, 3])
    two = model.dataset(list(zip(TEXTS, TEXTS)), [0] * 8).batch([2, 3])
    assert all(torch.equal(one[0][name], two[0][name]) for name in one[0])
    assert one[0]["token_type_ids"].max() == 1


def test_long_texts_are_cut_with_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = tiny("seqcls", tmp_path).dataset(TEXTS, [0] * 8, max_length=6)
    assert dataset.lengths.max() == 6
    assert "5 of 8 texts are longer than 6 tokens; the rest of each is ignored" in capsys.readouterr().err


def test_tokens_are_stored_as_flat_arrays(tmp_path: Path) -> None:
    dataset = tiny("seqcls", tmp_path).dataset(TEXTS * 100, [0] * 800)
    assert dataset.tokens.ids.dtype == np.int32
    assert dataset.tokens.types is None
    assert dataset.tokens.num_bytes == 4 * int(dataset.lengths.sum()) + 8 * 801
    assert repr(dataset).startswith("TextDataset(800 texts, ")


def test_texts_without_labels_give_batches_for_predictions(tmp_path: Path) -> None:
    model = tiny("seqcls", tmp_path)
    (inputs,) = model.dataset(TEXTS).batch([0, 1])
    assert model(**inputs).shape == (2, 2)


@pytest.mark.parametrize(
    ("labels", "options", "dtype", "shape"),
    [
        ([0, 1] * 4, {}, torch.int64, (8,)),
        (["neg", "pos"] * 4, {"labels": ["neg", "pos"]}, torch.int64, (8,)),
        ([0.5, 1] * 4, {"num_labels": 1}, torch.float32, (8,)),
        ([3, 1] * 4, {"num_labels": 1}, torch.float32, (8,)),
        ([[0, 1, 1], [1, 0, 0]] * 4, {"num_labels": 3}, torch.float32, (8, 3)),
        (torch.tensor([0, 1] * 4), {}, torch.int64, (8,)),
        (np.array([True, False] * 4), {}, torch.int64, (8,)),
        (
            [["a", "c"], []] * 4,
            {"labels": ["a", "b", "c"], "problem_type": "multi_label_classification"},
            torch.float32,
            (8, 3),
        ),
    ],
)
def test_labels_of_texts_become_what_the_loss_expects(tmp_path: Path, labels, options, dtype, shape) -> None:
    model = tiny("seqcls", tmp_path, **options)
    inputs, found = model.dataset(TEXTS, labels).batch(range(8))
    assert (found.dtype, found.shape) == (dtype, shape)
    assert model.compute_loss(inputs, found).isfinite()


def test_names_of_several_labels_become_zeros_and_ones(tmp_path: Path) -> None:
    options = {"labels": ["a", "b", "c"], "problem_type": "multi_label_classification"}
    dataset = tiny("seqcls", tmp_path, **options).dataset(TEXTS[:2], [["a", "c"], []])
    assert dataset.batch([0, 1])[1].tolist() == [[1, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize("labels", [[["a", "c"], ["b"]], [["a", "c"], ["b", "c"]], [(), ("b",)]])
def test_lists_of_names_make_a_model_without_a_problem_type_one_with_several_labels(
    tmp_path: Path, labels: list[Sequence[str]]
) -> None:
    model = tiny("seqcls", tmp_path, labels=["a", "b", "c"])
    rows = model.dataset(TEXTS[:2], labels).batch([0, 1])[1].tolist()
    assert rows == [[float(name in own) for name in "abc"] for own in labels]
    assert model.config.problem_type == "multi_label_classification"


def test_an_unknown_name_in_a_list_of_names_raises(tmp_path: Path) -> None:
    model = tiny("seqcls", tmp_path, labels=["a", "b", "c"])
    with pytest.raises(HFError, match="the label of text 1 is 'd', which the model does not have"):
        model.dataset(TEXTS[:2], [["a"], ["b", "d"]])
    with pytest.raises(HFError, match=r"text 1 is 'b' .*; expected a list of label names"):
        model.dataset(TEXTS[:2], [["a"], "b"])
    assert model.config.problem_type is None


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["pos"], "there are 8 texts and 1 labels"),
        (["pos", "bad"] * 4, "the label of text 1 is 'bad', which the model does not have"),
        (
            [0, 2] * 4,
            "the label of text 1 is 2, but the model has 2 labels, 0 to 1. Load it with num_labels=3",
        ),
        ([1, 2] * 4, r"the label of text 1 is 2, .* 0 to 1\. Ids count from 0: subtract 1"),
        ([-1] * 8, r"the label of text 0 is -1, .* 0 to 1\. Ids count from 0; .* Check the labels\.$"),
        ([0, 1, -1, 3] * 2, r"the label of text 2 is -1, .* Ids count from 0; .* Check the labels\.$"),
        ([0.0, 1.0] * 4, r"the label of text 0 is 0\.0 \(float\); expected an integer from 0 to 1"),
        ([0.0, 0.5] * 4, r"the label of text 1 is 0\.5 \(float\); expected an integer from 0 to 1"),
        ([0, math.nan] * 4, r"the label of text 1 is nan \(float\); expected finite numbers"),
        (["pos", math.nan] * 4, r"the label of text 1 is nan \(float\); expected one of the 2 label names"),
        (["pos", 1] * 4, r"the label of text 1 is 1 \(int\); expected one of the 2 label names"),
        ([0, None] * 4, r"the label of text 1 is None \(NoneType\); expected a label name, a class id"),
        ([[0, 2]] * 8, r"the label of text 0 is \[0, 2\] \(list\); expected a 0 or 1 for each label"),
        ({"pos": 8}, "labels is a dict; expected a list"),
        ([[0], [1, 2]] * 4, "the labels have rows of unequal lengths"),
        ([[0, 1, 1]] * 8, "a row of labels has 3 numbers, but the model has 2 labels"),
        ("positive", "labels is a str; expected a list"),
    ],
)
def test_wrong_labels_are_named(tmp_path: Path, labels, message) -> None:
    model = tiny("seqcls", tmp_path, labels=["neg", "pos"])
    with pytest.raises(HFError, match=message):
        model.dataset(TEXTS, labels)


@pytest.mark.parametrize("dtype", [list, np.array, torch.tensor])
def test_an_integer_that_is_the_name_of_a_label_and_the_id_of_another_one_is_an_error(
    tmp_path: Path, dtype
) -> None:
    model = tiny("seqcls", tmp_path, labels=["1", "2", "3"])
    assert model.dataset(TEXTS, ["1", "2"] * 4).batch([0, 1])[1].tolist() == [0, 1]
    for labels, message in (
        (
            [1, 2],
            r"text 0 is 1 \(int\)\. The label '1' has the id 0, and the id 1 is the label '2': .* strings",
        ),
        ([0, 2], r"text 1 is 2 \(int\)\. .* pass the name that it stands for: model\.config\.labels\[2\]"),
        (
            [3, 3],
            r"text 0 is 3 \(int\)\. The label '3' has the id 2, and there is no id 3\. .* such as '3'\.$",
        ),
    ):
        with pytest.raises(HFError, match=message):
            model.dataset(TEXTS, dtype(labels * 4))


@pytest.mark.parametrize("names", [["0", "1", "2"], ["a", "b", "c"], ["x", "1", "3rd"]])
def test_integers_are_ids_if_no_name_says_otherwise(tmp_path: Path, names) -> None:
    model = tiny("seqcls", tmp_path, labels=names)
    labels = [0, 1, 2, -100] * 2
    assert model.dataset(TEXTS, labels).batch(range(8))[1].tolist() == labels


@pytest.mark.parametrize(
    ("labels", "problem_type", "message"),
    [
        ([0, 1] * 4, "multi_label_classification", "text 0 is 0 .*; expected a row of 2 numbers"),
        (["pos"] * 8, "multi_label_classification", r"text 0 is 'pos' .*; expected a list of names"),
        ([["pos"], "neg"] * 4, "multi_label_classification", r"text 1 is 'neg' .*; expected a list of label"),
        ([[0, math.nan]] * 8, "multi_label_classification", r"text 0 is \[0, nan\] .*; expected finite"),
        ([0.5] * 8, "regression", "text 0 is 0.5 .*; expected a row of 2 numbers, one for each output"),
        (
            ["1.5"] * 8,
            "regression",
            "text 0 is '1.5' .*; expected a number, because the model predicts a value",
        ),
    ],
)
def test_labels_that_do_not_fit_the_problem_type_are_named(
    tmp_path: Path, labels, problem_type, message
) -> None:
    model = tiny("seqcls", tmp_path, labels=["neg", "pos"], problem_type=problem_type)
    with pytest.raises(HFError, match=message):
        model.dataset(TEXTS, labels)


def test_values_of_a_regression_may_be_any_finite_number(tmp_path: Path) -> None:
    model = tiny("seqcls", tmp_path, num_labels=1)
    values = [-100.5, 3.0] * 4
    assert model.dataset(TEXTS, values).batch(range(8))[1].tolist() == values
    with pytest.raises(HFError, match=r"the label of text 1 is nan \(float\); expected finite numbers"):
        model.dataset(TEXTS, [0.5, math.nan] * 4)


def test_a_text_or_word_with_the_label_minus_100_is_ignored(tmp_path: Path) -> None:
    model = tiny("seqcls", tmp_path, num_labels=2)
    assert model.dataset(TEXTS[:2], [1, -100]).batch([0, 1])[1].tolist() == [1, -100]
    tagger = tiny("tokcls", tmp_path / "tags", num_labels=2)
    assert tagger.dataset([["the", "dog"]], [[-100, 1]]).batch([0])[1].tolist() == [[-100, -100, 1, -100]]


@pytest.mark.parametrize(
    ("options", "labels", "problem_type"),
    [
        ({"num_labels": 1}, [0.5, 2.0] * 4, "regression"),
        ({"num_labels": 3}, [[0, 1, 1], [1, 0, 0]] * 4, "multi_label_classification"),
    ],
)
def test_a_model_without_a_problem_type_gets_that_of_its_labels(
    tmp_path: Path, capsys, options, labels, problem_type
) -> None:
    model = tiny("seqcls", tmp_path, **options)
    before = model.predict(TEXTS[0])
    dataset = model.dataset(TEXTS, labels)
    assert f"the labels set problem_type={problem_type!r}" in capsys.readouterr().out
    explicit = tiny("seqcls", tmp_path, problem_type=problem_type, **options)
    assert model.predict(TEXTS[0]) == explicit.predict(TEXTS[0]) != before
    assert model.metrics(dataset).keys() == explicit.metrics(dataset).keys()
    config = json.loads((model.export(tmp_path / "export").folder / "config.json").read_text())
    assert config["problem_type"] == problem_type


@pytest.mark.parametrize("labels", [["pos", "neg"], [1, 0]])
def test_labels_that_contradict_an_earlier_dataset_are_an_error_that_names_it(tmp_path: Path, labels):
    model = tiny("seqcls", tmp_path, labels=["neg", "pos"])
    model.dataset(["good film", "bad film"], [[0, 1], [1, 0]])
    message = r"An earlier dataset\(…\) .* set its problem_type='multi_label_classification'\. .* again\."
    with pytest.raises(HFError, match=message):
        model.dataset(["good film", "bad film"], labels)


def test_other_mistakes_in_labels_do_not_mention_an_earlier_dataset(tmp_path: Path):
    model = tiny("seqcls", tmp_path, labels=["neg", "pos"])
    model.dataset(["good film", "bad film"], [[0, 1], [1, 0]])
    with pytest.raises(HFError, match=r"the model has 2 labels\. Pass one number per label\.$"):
        model.dataset(["good film", "bad film"], [[0, 1, 1], [1, 0, 0]])


def test_wrong_texts_and_options_are_named(tmp_path: Path) -> None:
    model = tiny("seqcls", tmp_path)
    with pytest.raises(HFError, match="texts is a str; expected a list"):
        model.dataset("one text", [0])
    with pytest.raises(HFError, match="texts is a set; expected a list"):
        model.dataset({"a", "b"}, [0, 1])
    with pytest.raises(HFError, match="text 1 is an int"):
        model.dataset(["a", 3], [0, 1])
    with pytest.raises(HFError, match="there are no texts"):
        model.dataset([], [])
    with pytest.raises(HFError, match="pack='yes'; expected 'auto', True or False"):
        model.dataset(TEXTS, [0] * 8, pack="yes")
    with pytest.raises(HFError, match="cannot be combined"):
        model.dataset(TEXTS, [0] * 8, pack=True, group_by_length=True)
    with pytest.raises(HFError, match="indices from 0 to 7"):
        model.dataset(TEXTS, [0] * 8).batch([8])
    with pytest.raises(HFError, match="max_length=100 is out of range"):
        model.dataset(TEXTS, [0] * 8, max_length=100)


def test_the_names_of_labels_are_exported(tmp_path: Path) -> None:
    names = label_names(["pos", "neg", "pos"])
    model = tiny("seqcls", tmp_path, labels=names)
    report = model.export(tmp_path / "export")
    config = (report.folder / "config.json").read_text()
    assert '"0": "neg"' in config
    assert '"pos": 1' in config
    with pytest.raises(HFError, match="from 0 need no names"):
        label_names([[1, 2]])


def test_a_loader_groups_texts_by_length(tmp_path: Path) -> None:
    dataset = tiny("seqcls", tmp_path).dataset(TEXTS * 20, [0] * 160, group_by_length=True)
    plain = tiny("seqcls", tmp_path / "b").dataset(TEXTS * 20, [0] * 160)

    def padding(dataset) -> int:
        batches = [inputs["attention_mask"] for inputs, _ in Loader(dataset, 16, seed=0)]
        return sum(int((mask == 0).sum()) for mask in batches)

    assert padding(dataset) * 5 < padding(plain)
    assert "group_by_length=True was requested" in Loader(dataset, 16).reason
    # An evaluation reads the texts in their order.
    first = next(iter(Loader(dataset, 3, shuffle=False)))[0]
    assert torch.equal(first["input_ids"], dataset.batch([0, 1, 2])[0]["input_ids"])
