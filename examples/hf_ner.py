"""Find names in texts with a Hugging Face model.

    python hf_ner.py --model dslim/bert-base-NER

With --model, the model is used as it is. Without, a tiny one is created and trained, offline.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch

import flodl
from flodl import Trainer
from flodl.hf import AutoModelForTokenClassification, compute_loss, create_tiny, label_names, outputs

PEOPLE = ["Ada Lovelace", "Alan Turing", "Grace Hopper", "Emmy Noether", "Marie Curie", "Max Planck"]
PLACES = ["London", "Paris", "Berlin", "Warsaw", "Princeton", "Oslo"]


def sentences() -> tuple[list[list[str]], list[list[str]]]:
    """Return words and tags: who lives where."""
    words, tags = [], []
    for person in PEOPLE:
        for place in PLACES:
            words.append([*person.split(), "lives", "in", place, "."])
            tags.append(["B-PER", "I-PER", "O", "O", "B-LOC", "O"])
            words.append(["In", place, "we", "met", *person.split(), "."])
            tags.append(["O", "B-LOC", "O", "O", "B-PER", "I-PER", "O"])
    return words, tags


def train_tiny(folder: str) -> Any:
    """Create a tiny model and train it; its test sentences are different combinations of the same names."""
    words, tags = sentences()
    model = create_tiny(folder, [" ".join(text) for text in words], head="tokcls", labels=label_names(tags))
    is_valid = [index % 7 == 0 for index in range(len(words))]
    train, valid = (
        model.dataset(
            [text for text, chosen in zip(words, is_valid) if chosen is wanted],
            [row for row, chosen in zip(tags, is_valid) if chosen is wanted],
        )
        for wanted in (False, True)
    )
    trainer = Trainer(
        model,
        compute_loss,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=5e-3),
        metrics=model.metrics(),
        outputs=outputs,
        device="cpu",
        monitor=False,
    )
    result = trainer.fit(train, epochs=4, batch_size=10, eval_data=valid)
    print(f"F1 of the entities of a tiny model: {result.metrics['eval_entity_f1']:.2f}")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Find names in texts.")
    parser.add_argument("--model", help="a model on the hub, or a folder")
    parser.add_argument("texts", nargs="*", default=["In Paris we met Grace Hopper ."])
    settings = parser.parse_args()
    flodl.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        if settings.model:
            model = AutoModelForTokenClassification.from_pretrained(settings.model)
        else:
            model = train_tiny(folder)
        for text, entities in zip(settings.texts, model.predict(settings.texts)):
            print(text)
            for entity in entities:
                print(f"  {entity.label}: {entity.text} ({entity.start} to {entity.end}, {entity.score:.2f})")


if __name__ == "__main__":
    main()
