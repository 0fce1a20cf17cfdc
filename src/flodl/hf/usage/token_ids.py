"""Errors about ids that a model has no embeddings for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from flodl.core import HFError

from ..config import EncoderConfig


def not_integers(input_ids: Tensor) -> HFError:
    """Return the error for ids that are floats."""
    kind = str(input_ids.dtype).removeprefix("torch.")
    return HFError(f"input_ids is {kind}; expected integers. Pass input_ids.long().")


def outside_tables(inputs: Mapping[str, Any], config: EncoderConfig) -> HFError | None:
    """Return the error for the first input with ids that its embedding does not have; None if all do."""
    sizes = config.sizes
    rows = {
        "input_ids": (sizes.vocab, f"the vocabulary of the model has {sizes.vocab} tokens"),
        "token_type_ids": (sizes.token_types, f"the model has {sizes.token_types} token types"),
        "position_ids": (sizes.positions, f"the model has {sizes.positions} positions"),
    }
    for name, (count, what) in rows.items():
        ids = inputs.get(name)
        if not isinstance(ids, Tensor) or not ids.numel() or not count:
            continue
        low, high = (int(value) for value in ids.aminmax())
        if low < 0 or high >= count:
            advice = " Encode texts with the tokenizer of the model: model.tokenizer(texts)."
            return HFError(
                f"{name} has ids from {low} to {high}, but {what}: 0 to {count - 1}."
                f"{advice if name == 'input_ids' else ''}"
            )
    return None
