"""Models of base size against transformers, in float32 with plain attention: outputs and gradients.

    python benchmarks/hf_parity_base.py [--families bert,albert] [--heads base,seqcls,mlm] [--float64]

Weights are random, as before pretraining; norms and biases differ from 1 and 0. Each model is exported by
flodl and loaded by both libraries. Differences of outputs are relative to max(1, |reference|), those of
gradients to the largest gradient of the model. With --float64, both sides run in double precision, which
shows what is not rounding.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, table, write_results
from hf_rows.sizes import BASE, BERT, DEBERTA

from flodl.hf.auto import AUTO
from flodl.hf.heads import Head
from flodl.hf.parity import compare, load_reference

TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "roberta": {"vocab_size": 50265, "max_position_embeddings": 514, "pad_token_id": 1},
    "xlm-roberta": {"vocab_size": 250002, "max_position_embeddings": 514, "pad_token_id": 1},
    "distilbert": {
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "num_hidden_layers": 6,
        "hidden_dim": 3072,
        "pad_token_id": 0,
    },
    "albert": {
        "vocab_size": 30000,
        "max_position_embeddings": 512,
        "embedding_size": 128,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    },
    "deberta-v2": DEBERTA,
    "modernbert": {
        "vocab_size": 50368,
        "max_position_embeddings": 8192,
        "num_hidden_layers": 22,
        "intermediate_size": 1152,
        "pad_token_id": 50283,
    },
}


def config_of(family: str, *, tiny: bool) -> dict[str, Any]:
    """Return the config.json of the base size, or of a very small model to try the script."""
    config = {"model_type": family, **BASE, "num_labels": 3, **CONFIGS[family]}
    if tiny:
        layers = min(2, config["num_hidden_layers"])
        config |= {**TINY, "num_hidden_layers": layers}
        config |= {"hidden_dim": 96} if "hidden_dim" in config else {}
        if family == "albert":
            config["embedding_size"] = 32
    return config


@torch.no_grad()
def disturb(model: torch.nn.Module) -> None:
    """Move norms and biases away from 1 and 0."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.05 * torch.randn_like(parameter))


def check(family: str, head: Head, options: argparse.Namespace) -> dict[str, Any]:
    """Compare one model; both libraries load the same files."""
    started = time.process_time()
    dtype = torch.float64 if options.float64 else torch.float32
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        first = AUTO[head].from_config(config_of(family, tiny=options.tiny))
        disturb(first)
        first.export(path)
        del first
        model = AUTO[head].from_pretrained(path, dtype=dtype).eval()
        reference = load_reference(model.family.class_name(head), path, dtype)
    differences = list(compare(model, reference, gradients=True, length=options.length))
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "differences": {item.name: item.value for item in differences},
        "bound": differences[0].bound,
        "is_ok": all(item.is_ok for item in differences),
        "missing": list(reference.missing),
        "cpu_s": time.process_time() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--families", default=",".join(CONFIGS))
    parser.add_argument("--heads", default="base,seqcls,mlm")
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--float64", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="very small models, to try the script")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    name = "hf_parity_base" + ("_float64" if options.float64 else "")
    path = options.json / f"{name}.json"
    # Families may be compared one after the other.
    found: dict[str, Any] = json.loads(path.read_text())["models"] if path.exists() else {}
    settings = {"length": options.length, "tiny": options.tiny}
    rows = []
    for family in options.families.split(","):
        for head in map(Head, options.heads.split(",")):
            result = check(family, head, options)
            gc.collect()
            found[f"{family} {head.value}"] = result
            write_results(name, {"settings": settings, "models": found}, folder=options.json)
            for what, value in result["differences"].items():
                rows.append([family, head.value, what, f"{value:.1e}", f"{result['bound']:.0e}"])
                print(*rows[-1], flush=True)
    print(table(["family", "head", "", "difference", "bound"], rows))
    print("wrote", path)


if __name__ == "__main__":
    main()
