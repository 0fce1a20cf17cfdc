"""The predictions of a batch for metrics: one row per text, however the batch was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .heads import Head
from .losses import IGNORED, select_masked
from .packing import to_rows


def masked_inputs(inputs: Mapping[str, Any], labels: Tensor) -> tuple[dict[str, Any], Tensor]:
    """Return the inputs of masked LM for the masked positions only, and the labels there."""
    masked = select_masked(labels)
    return {**inputs, "positions": masked.positions}, masked.labels


def output_rows(
    head: Head, inputs: Mapping[str, Any], found: Any, labels: Any, *, padding_side: str
) -> tuple[Any, Any]:
    """Return what the model found and the labels, with one row per text."""
    if "cu_seqlens" in inputs:
        return _as_rows(head, inputs, found, labels)
    if head is Head.QUESTION_ANSWERING and padding_side == "left":
        found = tuple(_padding_last(logits, inputs["attention_mask"]) for logits in found)
    return found, labels


def _as_rows(head: Head, inputs: Mapping[str, Any], found: Any, labels: Any) -> tuple[Any, Any]:
    """Return the values of packed tokens as one row per text."""
    place = inputs["cu_seqlens"], inputs["longest"]
    if head is Head.QUESTION_ANSWERING:
        return tuple(to_rows(logits, *place) for logits in found), labels
    if head is Head.TOKEN_CLASSIFICATION:
        return to_rows(found, *place), to_rows(labels, *place, fill=IGNORED)
    return found, labels


def _padding_last(rows: Tensor, mask: Tensor) -> Tensor:
    """Move the padding of rows [texts, tokens] from the left to the right."""
    width = rows.shape[1]
    places = torch.arange(width, device=rows.device) + (width - mask.sum(1, keepdim=True))
    return rows.gather(1, places % width)
