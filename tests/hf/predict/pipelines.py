"""A tiny random model of transformers, with its pipeline and with our runner around it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from flodl.hf.predict import Runner
from flodl.hf.text import Tokenizer

from ..small_tokenizers import byte_level, tokenizer_json, word_piece

os.environ["HF_HUB_OFFLINE"] = "1"

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 420,
}


def tiny(model_type: str, suffix: str, folder: Path, **options: Any) -> tuple[Any, Any, Runner]:
    """Return the model, its tokenizer in transformers, and a runner with our tokenizer."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    is_roberta = model_type == "roberta"
    write, positions = (byte_level, 66) if is_roberta else (word_piece, 64)
    path = tokenizer_json(folder / "json", write(folder / "old"), model_type)
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        model_type, **{**SIZES, "max_position_embeddings": positions, **options}
    )
    auto = getattr(transformers, f"AutoModelFor{suffix}" if suffix else "AutoModel")
    model = auto.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    tokens = "<pad> <mask> <unk> <s> </s>" if is_roberta else "[PAD] [MASK] [UNK] [CLS] [SEP]"
    special = zip(("pad_token", "mask_token", "unk_token", "cls_token", "sep_token"), tokens.split())
    names = ["input_ids", "attention_mask"] + (["token_type_ids"] if model_type == "bert" else [])
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(path / "tokenizer.json"),
        model_max_length=64,
        model_input_names=names,
        **dict(special),
    )
    ours = Tokenizer.from_directory(path, config=config.to_dict())
    return model, theirs, Runner(forward_of(model), ours, batch_size=4)


def forward_of(model: Any) -> Any:
    def forward(**inputs: torch.Tensor) -> Any:
        output = model(**inputs)
        if hasattr(output, "start_logits"):
            return output.start_logits, output.end_logits
        return output.logits if hasattr(output, "logits") else output.last_hidden_state

    return forward


def data(name: str) -> Path:
    """Return a file of real data, or skip the test."""
    places = [os.environ.get("FLODL_DATA"), Path(__file__).parents[4] / "shared" / "data"]
    found = [Path(place) / name for place in places if place and (Path(place) / name).is_file()]
    return found[0] if found else pytest.skip(f"no {name} in FLODL_DATA or ../shared/data")
