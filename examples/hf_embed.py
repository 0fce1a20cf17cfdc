"""Embed sentences with a Hugging Face or sentence-transformers model, and find the most similar one.

    python hf_embed.py --model sentence-transformers/all-MiniLM-L6-v2

Without --model, a tiny model with random weights is created, so that the example runs offline: its vectors
reflect which words two sentences share, and nothing about their meaning.
"""

from __future__ import annotations

import argparse
import tempfile

from torch.nn.functional import normalize

from flodl.hf import AutoModel, create_tiny

SENTENCES = [
    "how do i reset my password",
    "the weather is nice in paris today",
    "where can i buy a ticket for the train",
    "a recipe for bread without yeast",
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Find the most similar sentence.")
    parser.add_argument("--model", help="a model on the hub, or a folder")
    parser.add_argument("--query", default="can i buy a train ticket")
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if settings.model:
            model = AutoModel.from_pretrained(settings.model)
        else:
            print("This tiny model has random weights.")
            model = create_tiny(folder, [*SENTENCES, settings.query], head="base")
        vectors = normalize(model.embed([settings.query, *SENTENCES]), dim=1)
    similarity = vectors[1:] @ vectors[0]
    print(f"{settings.query}:")
    for index in similarity.argsort(descending=True).tolist():
        print(f"  {similarity[index]:.3f}  {SENTENCES[index]}")


if __name__ == "__main__":
    main()
