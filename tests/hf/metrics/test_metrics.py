"""Tests of the metrics of fine-tuning against known values."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from flodl.core import HFError
from flodl.hf.metrics import (
    Accuracy,
    EntityF1,
    MultilabelF1,
    SquadScore,
    answer_f1,
    exact_match,
    find_entities,
    normalize_answer,
    squad_scores,
)

from .. import squad_metric
from ..predict.pipelines import data
from ..tiny_models import tiny

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def test_accuracy_counts_labels_that_are_not_ignored() -> None:
    metric = Accuracy()
    logits = torch.eye(3)[torch.tensor([[0, 1, 2], [2, 2, 2]])]
    metric.update(logits, torch.tensor([[0, 1, 1], [-100, -100, 2]]))
    assert metric.compute() == 0.75
    metric.reset()
    assert math.isnan(metric.compute())


def test_accuracy_over_batches_is_that_of_all_samples() -> None:
    metric = Accuracy()
    logits, labels = torch.randn(100, 5), torch.randint(0, 5, (100,))
    for part in (slice(0, 7), slice(7, 60), slice(60, 100)):
        metric.update(logits[part], labels[part])
    assert metric.compute() == pytest.approx(float((logits.argmax(1) == labels).float().mean()))


def test_f1_of_several_labels_is_a_micro_average() -> None:
    metric = MultilabelF1()
    metric.update(torch.tensor([[1.0, -1.0, 1.0]]), torch.tensor([[1.0, 1.0, 0.0]]))
    metric.update(torch.tensor([[1.0, -1.0, -1.0]]), torch.tensor([[1.0, 0.0, 0.0]]))
    # 2 right, 3 predicted, 3 actual
    assert metric.compute() == pytest.approx(2 / 3)
    metric.reset()
    assert metric.compute() == 0.0


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-PER I-PER O", [("PER", 1, 2)]),
        ("B-PER B-PER", [("PER", 0, 0), ("PER", 1, 1)]),
        ("I-PER I-PER O I-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),
        ("B-PER I-LOC I-LOC", [("PER", 0, 0), ("LOC", 1, 2)]),
        ("S-PER B-LOC I-LOC E-LOC O", [("PER", 0, 0), ("LOC", 1, 3)]),
        ("PER PER O LOC", [("PER", 0, 1), ("LOC", 3, 3)]),
        ("O O", []),
        ("", []),
        ("B-creative-work I-creative-work", [("creative-work", 0, 1)]),
    ],
)
def test_entities_are_found_by_the_rules_of_conll(tags: str, expected: list[tuple[str, int, int]]) -> None:
    assert find_entities(tags.split()) == expected


def test_an_entity_counts_if_type_and_both_ends_are_right() -> None:
    metric = EntityF1(TAGS)
    truth = torch.tensor([[-100, 1, 2, -100, 0, 3], [3, 0, 1, -100, -100, -100]])
    found = torch.tensor([[0, 1, 2, 4, 0, 1], [3, 0, 0, 1, 1, 1]])
    metric.update(torch.nn.functional.one_hot(found, 5).float(), truth)
    # Actual: PER, LOC | LOC, PER; predicted: PER, PER | LOC; right: PER | LOC.
    expected = {"precision": 2 / 3, "recall": 2 / 4, "f1": 2 * 2 / 7}
    assert metric.compute() == pytest.approx(expected)
    metric.reset()
    assert metric.compute() == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


@pytest.mark.parametrize(
    ("metric", "predictions", "labels", "message"),
    [
        (EntityF1(["O", "B-PER"]), (2, 5, 3), (2, 5), "created for 2 tags .* shape \\(2, 5, 3\\)"),
        (MultilabelF1(), (4, 4), (4,), "shape \\(4,\\) for predictions of shape \\(4, 4\\)"),
    ],
)
def test_metrics_of_another_model_raise_with_the_shapes(metric, predictions, labels, message) -> None:
    with pytest.raises(HFError, match=message):
        metric.update(torch.zeros(predictions), torch.zeros(labels))


def test_entities_of_real_tags_equal_those_counted_by_hand() -> None:
    """The training part of WNUT 17 has 1,975 entities."""
    rows: list[list[str]] = [[]]
    for line in data("wnut17/wnut17train.conll").read_text(encoding="utf-8").splitlines():
        if line.strip():
            rows[-1].append(line.split("\t")[1])
        else:
            rows.append([])
    assert sum(len(find_entities(row)) for row in rows) == 1975


@pytest.mark.parametrize(
    ("prediction", "truth", "f1", "exact"),
    [
        ("The Eiffel Tower!", "eiffel tower", 1.0, 1.0),
        ("in Paris, France", "Paris", 0.5, 0.0),
        ("", "", 1.0, 1.0),
        ("", "Paris", 0.0, 0.0),
        ("the", "a", 1.0, 1.0),
        ("a a b", "a b b", 2 / 3, 0.0),
        ("two 2", "2", 2 / 3, 0.0),
    ],
)
def test_answers_are_compared_by_the_official_rules(prediction, truth, f1, exact) -> None:
    assert answer_f1(prediction, truth) == pytest.approx(f1)
    assert exact_match(prediction, truth) == exact


def test_scores_are_the_best_over_the_accepted_answers_in_percent() -> None:
    found = squad_scores(["cat", "dog", ""], [["a cat", "wolf"], ["big dog"], []])
    assert found == {"exact_match": pytest.approx(200 / 3), "f1": pytest.approx(100 * (1 + 2 / 3 + 1) / 3)}
    with pytest.raises(HFError, match="1 predictions for 2 questions"):
        squad_scores(["a"], [["a"], ["b"]])


def test_scores_equal_those_of_the_reference_on_real_answers() -> None:
    articles = json.loads(data("squad/dev-v1.1.json").read_text(encoding="utf-8"))["data"][:3]
    questions = [
        question for article in articles for part in article["paragraphs"] for question in part["qas"]
    ]
    truths = {question["id"]: [answer["text"] for answer in question["answers"]] for question in questions}
    # The last answer stands for a prediction; words are dropped from some.
    guesses = {
        name: " ".join(texts[-1].split()[: 1 + index % 4])
        for index, (name, texts) in enumerate(truths.items())
    }
    expected = squad_metric.squad(guesses, truths)
    assert squad_scores(list(guesses.values()), list(truths.values())) == pytest.approx(expected)
    assert 20 < expected["exact_match"] < expected["f1"] < 95


def test_logits_of_all_windows_become_answers(tmp_path: Path) -> None:
    model = tiny("qa", tmp_path)
    context = "john smith lives in new york city . " * 4 + "the capital of france is paris ."
    contexts, questions = [context, "it is paris"], ["what is the capital of france ?", "what is it ?"]
    answers = [
        {"text": ["paris"], "answer_start": [context.index("paris")]},
        {"text": ["paris"], "answer_start": [6]},
    ]
    dataset = model.dataset(questions, contexts, answers, max_length=32, stride=8)
    metric = SquadScore(dataset)
    for indices in ([2, 0], range(3, len(dataset)), [1]):
        inputs, labels = dataset.batch(indices)
        logits = [torch.zeros(inputs["input_ids"].shape) for _ in range(2)]
        for name, values in zip(("start_positions", "end_positions"), logits):
            values[range(len(values)), labels[name]] = 9.0
        metric.update(tuple(logits), labels)
    assert metric.compute() == {"exact_match": 100.0, "f1": 100.0}
    assert metric.predictions == ["paris", "paris"]


def test_questions_without_answers_may_get_an_empty_one(tmp_path: Path) -> None:
    dataset = tiny("qa", tmp_path).dataset(["what is it ?"], ["it is paris"], [None], max_length=32)
    metric = SquadScore(dataset)
    inputs, labels = dataset.batch([0])
    logits = torch.zeros(inputs["input_ids"].shape)
    logits[:, 0] = 9.0
    metric.update((logits, logits), labels)
    assert metric.compute() == {"exact_match": 100.0, "f1": 100.0}
    with pytest.raises(HFError, match="the dataset has no answers"):
        SquadScore(tiny("qa", tmp_path / "b").dataset(["a"], ["b"]))


def test_normalization_drops_case_punctuation_articles_and_space() -> None:
    assert normalize_answer(" An  Apple, the-End. ") == "apple theend"
