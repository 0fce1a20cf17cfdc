"""The real tasks of `benchmarks/hf_quality.py`: sentences, intents, entities and questions."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Rows = tuple[Sequence[Any], ...]


@dataclass(frozen=True)
class Task:
    """A task with its recipe; the arguments of `model.dataset` for training and for the test."""

    head: str
    train: Rows
    test: Rows
    labels: tuple[str, ...]
    scores: tuple[str, ...]
    epochs: int
    lr: float
    batch: int


def open_task(name: str, data: Path) -> Task:
    return {"MR": _mr, "Banking77": _banking, "WNUT-17": _wnut, "SQuAD": _squad}[name](data)


NAMES = ("MR", "Banking77", "WNUT-17", "SQuAD")


def _mr(data: Path) -> Task:
    """Nine tenths of the sentences train, the rest is the test."""
    rows = [
        (line.strip(), label)
        for label, name in (("negative", "rt-polarity.neg"), ("positive", "rt-polarity.pos"))
        for line in (data / "mr-polarity" / name).read_text("latin-1").splitlines()
    ]
    random.Random(0).shuffle(rows)
    texts, labels = zip(*rows)
    cut = len(rows) * 9 // 10
    return Task(
        "seqcls",
        (texts[:cut], labels[:cut]),
        (texts[cut:], labels[cut:]),
        ("negative", "positive"),
        ("accuracy",),
        3,
        5e-5,
        32,
    )


def _banking(data: Path) -> Task:
    def read(name: str) -> tuple[list[str], list[str]]:
        with (data / "banking77" / name).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return [row["text"] for row in rows], [row["category"] for row in rows]

    train, test = read("train.csv"), read("test.csv")
    return Task("seqcls", train, test, tuple(sorted(set(train[1]))), ("accuracy",), 6, 2e-4, 32)


def _wnut(data: Path) -> Task:
    def read(name: str) -> tuple[list[list[str]], list[list[str]]]:
        words: list[list[str]] = [[]]
        tags: list[list[str]] = [[]]
        for line in (data / "wnut17" / name).read_text("utf-8").splitlines():
            if not line.strip():
                words.append([])
                tags.append([])
                continue
            word, _, tag = line.rpartition("\t")
            words[-1].append(word.strip() or "?")
            tags[-1].append(tag.strip())
        return [row for row in words if row], [row for row in tags if row]

    train, test = read("wnut17train.conll"), read("emerging.test.annotated")
    kinds = sorted({tag for row in train[1] for tag in row} - {"O"})
    return Task("tokcls", train, test, ("O", *kinds), ("entity_f1",), 6, 2e-4, 32)


def _squad(data: Path) -> Task:
    """The dev set, split in two by article: the training set is not available."""
    articles = json.loads((data / "squad" / "dev-v1.1.json").read_text())["data"]
    random.Random(0).shuffle(articles)

    def rows(part: Sequence[Any]) -> Rows:
        found = [
            (
                question["question"].strip(),
                paragraph["context"],
                {
                    "text": [answer["text"] for answer in question["answers"]],
                    "answer_start": [answer["answer_start"] for answer in question["answers"]],
                },
            )
            for article in part
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
        return tuple(zip(*found))

    half = len(articles) // 2
    scores = ("squad_exact_match", "squad_f1")
    return Task("qa", rows(articles[:half]), rows(articles[half:]), (), scores, 4, 1e-4, 32)
