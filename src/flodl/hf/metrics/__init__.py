"""Metrics of fine-tuning, for `Trainer(metrics=…)`: `reset`, `update(predictions, labels)`, `compute`."""

from .accuracy import Accuracy, MultilabelF1
from .entities import EntityF1, find_entities
from .squad import SquadScore, answer_f1, exact_match, normalize_answer, squad_scores

__all__ = [
    "Accuracy",
    "EntityF1",
    "MultilabelF1",
    "SquadScore",
    "answer_f1",
    "exact_match",
    "find_entities",
    "normalize_answer",
    "squad_scores",
]
