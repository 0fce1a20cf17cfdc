"""Predict masked words with a Hugging Face model.

    python hf_fill_mask.py --model distilbert-base-uncased

With --model, the model is used as it is. Without, a tiny one is created and trained, offline. The training
masks depend only on seed, epoch and position, so a resumed run sees the same ones.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch

import flodl
from flodl import Trainer
from flodl.hf import AutoModelForMaskedLM, compute_loss, create_tiny, outputs

CAPITALS = {
    "France": "Paris",
    "Norway": "Oslo",
    "Japan": "Tokyo",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Egypt": "Cairo",
    "Peru": "Lima",
    "Austria": "Vienna",
}
TEXTS = [f"{city} is the capital of {country} ." for country, city in CAPITALS.items()] * 12


def train_tiny(folder: str) -> Any:
    """Create a tiny model and train it to fill masks."""
    model = create_tiny(folder, TEXTS, head="mlm", dropout=0.0)
    data = model.dataset(TEXTS, mask_probability=0.2)
    trainer = Trainer(
        model,
        compute_loss,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=3e-3),
        metrics=model.metrics(),
        outputs=outputs,
        device="cpu",
        monitor=False,
    )
    result = trainer.fit(data, epochs=30, batch_size=16, eval_data=data)
    print(f"a tiny model: {result.metrics['eval_accuracy']:.0%} of the masked words are right")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Predict masked words.")
    parser.add_argument("--model", help="a model on the hub, or a folder")
    parser.add_argument(
        "--text", default="{mask} is the capital of France .", help="{mask} stands for the mask token"
    )
    settings = parser.parse_args()
    flodl.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        if settings.model:
            model = AutoModelForMaskedLM.from_pretrained(settings.model)
        else:
            model = train_tiny(folder)
        text = settings.text.replace("{mask}", model.tokenizer.mask.text)
        for fill in model.predict(text, top_k=3):
            print(f"{fill.score:.3f}  {fill.sequence}")


if __name__ == "__main__":
    main()
