"""Tests of answers as positions of tokens, in windows of long contexts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flodl.core import HFError

from ..predict.pipelines import data
from ..tiny_models import tiny

CONTEXT = "john smith lives in new york city . " * 4 + "the capital of france is paris ."
QUESTION = "what is the capital of france ?"
START = CONTEXT.index("paris")


def texts_of(dataset, contexts: list[str]) -> list[str]:
    """Return the text between the positions of each window; "" where both are the [CLS] token."""
    _, labels = dataset.batch(range(len(dataset)))
    found = []
    for window, (start, end) in enumerate(zip(labels["start_positions"], labels["end_positions"])):
        first = dataset.tokens.offsets[window]
        characters = (
            dataset.questions.characters[first + int(start)],
            dataset.questions.characters[first + int(end)],
        )
        context = contexts[dataset.questions.question[window]]
        found.append(context[characters[0][0] : characters[1][1]] if characters[0][0] >= 0 else "")
    return found


def test_windows_with_the_answer_have_its_tokens_and_others_the_first_one(tmp_path: Path) -> None:
    model = tiny("qa", tmp_path)
    answers = [{"text": ["paris"], "answer_start": [START]}]
    dataset = model.dataset([QUESTION], [CONTEXT], answers, max_length=32, stride=8)
    found = texts_of(dataset, [CONTEXT])
    assert len(found) > 2
    assert set(found) == {"", "paris"}
    assert dataset.lengths.max() <= 32
    assert model.compute_loss(*dataset.batch([0, len(found) - 1])).isfinite()


def test_both_formats_of_squad_are_read(tmp_path: Path) -> None:
    model = tiny("qa", tmp_path)
    answers = [
        {"text": ["paris", "is paris"], "answer_start": [START, START - 3]},
        [{"text": "paris", "answer_start": START}],
        {"text": "paris", "answer_start": START},
        {"text": [], "answer_start": []},
        None,
    ]
    dataset = model.dataset([QUESTION] * 5, [CONTEXT] * 5, answers, max_length=64)
    assert texts_of(dataset, [CONTEXT] * 5) == ["paris", "paris", "paris", "", ""]


def test_left_padding_moves_the_positions(tmp_path: Path) -> None:
    model = tiny("qa", tmp_path)
    answers = [{"text": ["paris"], "answer_start": [START]}, {"text": ["john"], "answer_start": [0]}]
    contexts = [CONTEXT, "john smith"]
    right = model.dataset([QUESTION] * 2, contexts, answers, max_length=64).batch([0, 1])
    model.tokenizer.padding_side = "left"
    left = model.dataset([QUESTION] * 2, contexts, answers, max_length=64).batch([0, 1])
    for inputs, labels in (right, left):
        tokens = inputs["input_ids"][range(2), labels["start_positions"]]
        assert [model.tokenizer.token(int(token)) for token in tokens] == ["paris", "john"]
    assert not right[1]["start_positions"].equal(left[1]["start_positions"])


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            [{"text": ["paris"], "answer_start": [3]}],
            "answer 0 is 'paris' at character 3, but the context has 'n smi'",
        ),
        ([{"text": ["paris"], "answer_start": [-5]}], "at character -5"),
        ([{"text": ["paris"]}], "expected {'text'"),
        (["paris"], "answer 0 is 'paris'; expected"),
        ([None, None], "1 questions and 2 answers"),
    ],
)
def test_wrong_answers_are_named(tmp_path: Path, answers, message) -> None:
    with pytest.raises(HFError, match=message):
        tiny("qa", tmp_path).dataset([QUESTION], [CONTEXT], answers)


def test_every_answer_of_squad_is_found_again(tmp_path: Path) -> None:
    articles = json.loads(data("squad/dev-v1.1.json").read_text(encoding="utf-8"))["data"][:2]
    rows = [
        (question["question"], part["context"], question["answers"])
        for article in articles
        for part in article["paragraphs"][:10]
        for question in part["qas"]
    ]
    questions, contexts, answers = (list(column) for column in zip(*rows))
    model = tiny("qa", tmp_path, config={"max_position_embeddings": 2048})
    dataset = model.dataset(questions, contexts, answers, max_length=2048)
    assert len(dataset) == len(rows)
    found = texts_of(dataset, contexts)
    # A token may be longer than the answer ("$5" in "$5bn"), never shorter.
    assert all(answer[0]["text"] in text for answer, text in zip(answers, found))
    assert sum(answer[0]["text"] == text for answer, text in zip(answers, found)) > 0.95 * len(found)
