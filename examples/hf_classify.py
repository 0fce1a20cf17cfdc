"""Classify texts with a Hugging Face model.

    python hf_classify.py --model distilbert-base-uncased-finetuned-sst-2-english

Without --model, a tiny model with random weights is created, so that the example runs offline.
"""

from __future__ import annotations

import argparse
import tempfile

from flodl.hf import AutoModelForSequenceClassification, create_tiny

TEXTS = ["a moving and funny film", "two hours of my life that i will never get back", "it is what it is"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Classify texts.")
    parser.add_argument("--model", help="a model on the hub, or a folder")
    parser.add_argument("texts", nargs="*", default=TEXTS)
    settings = parser.parse_args()
    if settings.model:
        model = AutoModelForSequenceClassification.from_pretrained(settings.model)
    else:
        print("This tiny model has random weights: its scores mean nothing.")
        with tempfile.TemporaryDirectory() as folder:
            model = create_tiny(folder, TEXTS, head="seqcls", labels=["negative", "positive"])
            model.tokenizer  # noqa: B018  # read before the folder is deleted
    for text, result in zip(settings.texts, model.predict(settings.texts)):
        scores = ", ".join(f"{score.label} {score.score:.3f}" for score in result)
        print(f"{text}: {scores}")


if __name__ == "__main__":
    main()
