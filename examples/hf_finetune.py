"""Fine-tune a Hugging Face model on raw texts in one screen of code: metrics, resuming, best weights, export.

    python hf_finetune.py --model distilbert-base-uncased --run-dir runs/reviews --epochs 3

Without --model, a tiny model with random weights is created, so that the example runs offline.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
from pathlib import Path

import torch

import flodl
from flodl import Trainer
from flodl.checkpoint import best, best_bundle, last, read_bundle
from flodl.hf import AutoModelForSequenceClassification, compute_loss, create_tiny, label_names, outputs

GOOD, BAD = (
    ("wonderful", "funny", "moving", "clever", "charming"),
    ("dull", "boring", "flat", "silly", "stale"),
)
NOUNS = ("film", "story", "plot", "comedy", "script", "ending", "cast")


def reviews() -> tuple[list[str], list[str]]:
    """Return short texts with labels, in random order."""
    rows = [
        (f"the {noun} is {first} and {second} .", label)
        for label, words in (("positive", GOOD), ("negative", BAD))
        for noun in NOUNS
        for first, second in itertools.permutations(words, 2)
    ]
    random.Random(0).shuffle(rows)
    return [text for text, _ in rows], [label for _, label in rows]


def finetune(name: str | None, run: Path, epochs: int) -> None:
    texts, labels = reviews()
    if name:
        model = AutoModelForSequenceClassification.from_pretrained(name, labels=label_names(labels))
    else:
        model = create_tiny(run / "tiny", texts, head="seqcls", labels=label_names(labels))
    train, valid = model.dataset(texts[80:], labels[80:]), model.dataset(texts[:80], labels[:80])
    trainer = Trainer(
        model,
        compute_loss,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=5e-5 if name else 3e-3),
        clip_norm=1.0,
        metrics=model.metrics(),
        outputs=outputs,
        checkpoint_dir=run,
        keep=last(1) | best("eval_accuracy"),
        monitor=False,
    )
    result = trainer.fit(train, epochs=epochs, batch_size=16, eval_data=valid)
    for row in result.history:
        print(f"epoch {row['epoch']}: loss {row['loss']:.3f}, accuracy {row['eval_accuracy']:.3f}")
    model.load_state_dict(read_bundle(best_bundle(run, "eval_accuracy"))["model"])
    model.export(run / "model")
    again = AutoModelForSequenceClassification.from_pretrained(run / "model")
    print(again.predict(["a funny and clever story", "a dull comedy"]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune a model.")
    parser.add_argument("--model", help="a model on the hub, or a folder")
    parser.add_argument("--run-dir", type=Path, help="the folder of the run; by default a temporary one")
    parser.add_argument("--epochs", type=int, default=3)
    settings = parser.parse_args()
    flodl.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        finetune(settings.model, settings.run_dir or Path(folder) / "run", settings.epochs)


if __name__ == "__main__":
    main()
