"""Small fine-tuning runs of every head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import flodl
from flodl import Trainer
from flodl.hf import compute_loss, outputs

from .tiny_models import TEXTS, tiny

HEADS = ("seqcls", "tokcls", "qa", "mlm")
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def examples(head: str, count: int = 18) -> tuple[Any, ...]:
    """Return raw training data for a head."""
    texts = (TEXTS * count)[:count]
    match head:
        case "seqcls":
            return texts, [len(text) % 2 for text in texts]
        case "tokcls":
            return [text.split() for text in texts], [
                [len(word) % 2 for word in text.split()] for text in texts
            ]
        case "qa":
            answers = [
                {"text": [text.split()[-1]], "answer_start": [text.rindex(text.split()[-1])]}
                for text in texts
            ]
            return ["what is it ?"] * count, texts, answers
    return (texts,)


class Recorder:
    """Keeps the loss of each update, and stops the run after some of them."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.losses: list[float] = []
        self.stop_after = stop_after

    def on_step_end(self, trainer: Any, loss: Any) -> None:
        self.losses.append(float(loss))
        if len(self.losses) == self.stop_after:
            trainer.stop("enough")


def trainer_for(model: Any, dataset: Any, *hooks: Any, device: str = "cpu", **options: Any) -> Trainer:
    """Return a trainer with the usual metrics."""
    flodl.manual_seed(0)
    options = {"step_fn": compute_loss, "outputs": outputs, "monitor": False, **options}
    return Trainer(
        model,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3),
        metrics=model.metrics(dataset),
        device=device,
        hooks=hooks,
        seed=3,
        **options,
    )


def finetune(
    head: str,
    folder: Path,
    *hooks: Any,
    pack: bool = False,
    epochs: int = 2,
    model_type: str = "bert",
    config: Any = None,
    **options: Any,
) -> tuple[Any, Any]:
    """Train a tiny model; return the result and the model."""
    model = tiny(head, folder, model_type=model_type, config=config)
    more = {"max_length": 64} if head == "qa" else {}
    dataset = model.dataset(*examples(head), pack=pack, **more)
    trainer = trainer_for(model, dataset, *hooks, **options)
    return trainer.fit(dataset, batch_size=5, epochs=epochs, eval_data=dataset), model
