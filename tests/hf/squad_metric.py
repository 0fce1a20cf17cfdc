"""The official metric of SQuAD: exact match and F1, after normalization of the answers."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence


def normalized(text: str) -> str:
    """Convert to lower case; drop punctuation, articles and extra white space."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact(prediction: str, truth: str) -> float:
    return float(normalized(prediction) == normalized(truth))


def f1(prediction: str, truth: str) -> float:
    found, expected = normalized(prediction).split(), normalized(truth).split()
    if not found or not expected:
        return float(found == expected)
    same = sum((Counter(found) & Counter(expected)).values())
    return 2 * same / (len(found) + len(expected))


def squad(predictions: Mapping[str, str], truths: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return both in percent: the best over the accepted answers, averaged over the questions."""

    def mean(score: Callable[[str, str], float]) -> float:
        return 100 * sum(
            max((score(predictions.get(name, ""), text) for text in texts or [""]), default=0.0)
            for name, texts in truths.items()
        ) / len(truths)  # fmt: skip

    return {"exact_match": mean(exact), "f1": mean(f1)}
