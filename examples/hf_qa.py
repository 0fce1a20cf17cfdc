"""Find the answer to a question in a text with a Hugging Face model.

    python hf_qa.py --model distilbert/distilbert-base-cased-distilled-squad

With --model, the model is used as it is. Without, a tiny one is created and trained, offline.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch

import flodl
from flodl import Trainer
from flodl.hf import AutoModelForQuestionAnswering, compute_loss, create_tiny, outputs

COLORS = ["red", "blue", "green", "yellow", "black", "white", "brown"]
THINGS = ["house", "car", "boat", "door", "hat", "coat"]
QUESTION, CONTEXT = "what is the color of the boat ?", "the boat is green ."


def examples() -> tuple[list[str], list[str], list[dict[str, Any]]]:
    """Return questions, contexts and answers."""
    questions, contexts, answers = [], [], []
    for thing in THINGS:
        for color in COLORS:
            context = f"the {thing} is {color} ."
            questions.append(f"what is the color of the {thing} ?")
            contexts.append(context)
            answers.append({"text": [color], "answer_start": [context.index(color)]})
    return questions, contexts, answers


def train_tiny(folder: str) -> Any:
    """Create a tiny model and train it."""
    questions, contexts, answers = examples()
    model = create_tiny(folder, [*questions, *contexts], head="qa")
    data = model.dataset(questions, contexts, answers, max_length=64, stride=16)
    trainer = Trainer(
        model,
        compute_loss,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=5e-3),
        metrics=model.metrics(data),
        outputs=outputs,
        device="cpu",
        monitor=False,
    )
    result = trainer.fit(data, epochs=6, batch_size=6, eval_data=data)
    print(f"a tiny model, on its training data: exact match {result.metrics['eval_squad_exact_match']:.0f} %")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer a question.")
    parser.add_argument("--model", help="a model on the hub, or a folder")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--context", default=CONTEXT)
    settings = parser.parse_args()
    flodl.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        if settings.model:
            model = AutoModelForQuestionAnswering.from_pretrained(settings.model)
        else:
            model = train_tiny(folder)
        answer = model.predict(settings.question, settings.context)
    print(f"{settings.question} {answer.text} ({answer.start} to {answer.end}, {answer.score:.2f})")


if __name__ == "__main__":
    main()
