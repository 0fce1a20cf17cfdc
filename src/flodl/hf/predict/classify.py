"""Sequence classification: labels with scores, for one label, several labels, or a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from flodl.core import HFError

from .results import Classification, LabelScore
from .runner import Rows, Runner, as_list, check_top_k, to_float

Function = Literal["softmax", "sigmoid", "none"]


def classify_texts(
    runner: Runner,
    texts: str | Sequence[str] | Sequence[tuple[str, str]],
    pairs: str | Sequence[str] | None = None,
    *,
    labels: Sequence[str],
    problem_type: str | None = None,
    function_to_apply: Function | None = None,
    top_k: int | None = None,
    max_length: int | None = None,
) -> Classification | list[Classification]:
    """Classify a text or a list of texts, or pairs of texts; `top_k` keeps the best labels only."""
    texts, pairs, single = _inputs(texts, pairs)
    function = function_for(problem_type, len(labels)) if function_to_apply is None else function_to_apply
    if top_k is not None:
        check_top_k(top_k)
    if function not in get_args(Function):
        raise HFError(f"function_to_apply is {function!r}; expected 'softmax', 'sigmoid' or 'none'.")

    def interpret(rows: Rows) -> list[Classification]:
        logits = to_float(rows.output)
        return [classification(row, labels, function=function, top_k=top_k) for row in logits]

    found = runner.run_texts(texts, pairs, interpret, max_length=max_length)
    return found[0] if single else found


def function_for(problem_type: str | None, num_labels: int) -> Function:
    """Return what turns logits into scores, by the same rule as the pipeline of transformers.

    >>> function_for(None, 3), function_for("multi_label_classification", 3), function_for("regression", 1)
    ('softmax', 'sigmoid', 'none')
    """
    if problem_type == "regression":
        return "none"
    if problem_type == "multi_label_classification" or num_labels == 1:
        return "sigmoid"
    return "softmax"


def classification(
    logits: np.ndarray[Any, Any], labels: Sequence[str], *, function: Function, top_k: int | None = None
) -> Classification:
    """Turn the logits of one text into labels and scores.

    >>> classification(np.array([0.0, 1.0]), ["no", "yes"], function="softmax")
    Classification(yes 0.7311, no 0.2689)
    """
    if len(logits) != len(labels):
        raise HFError(f"the model returns {len(logits)} logits for {len(labels)} labels; expected one each.")
    if function == "softmax":
        scores = np.exp(logits - logits.max())
        scores = scores / scores.sum()
    elif function == "sigmoid":
        scores = 1.0 / (1.0 + np.exp(-logits.clip(-80, 80)))
    else:
        scores = logits
    order = range(len(labels)) if function == "none" else np.argsort(-scores, kind="stable")
    pairs = [LabelScore(labels[index], float(scores[index])) for index in order]
    return Classification(tuple(pairs[:top_k]))


def _inputs(texts: Any, pairs: Any) -> tuple[list[str], list[str] | None, bool]:
    """Accept a text, a list of texts, a list of pairs, and second texts apart."""
    if isinstance(texts, tuple) and len(texts) == 2 and pairs is None:
        raise HFError("texts is a tuple of two; pass a list of pairs, or the second text as `pairs`.")
    texts, single = as_list(texts)
    if pairs is not None:
        pairs, single_pair = as_list(pairs, "pairs")
        if single != single_pair:
            raise HFError("texts and pairs must both be strings, or both be lists of the same length.")
        return texts, pairs, single
    if texts and all(isinstance(item, tuple | list) and len(item) == 2 for item in texts):
        first, second = zip(*texts)
        return list(first), list(second), False
    return texts, None, single
