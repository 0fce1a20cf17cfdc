"""What a `Trainer` needs to fine-tune any head: the step function, and the outputs for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flodl.core import HFError

from .heads import Head
from .losses import IGNORED, select_masked
from .models import PretrainedModel
from .packing import to_rows


def compute_loss(model: PretrainedModel, inputs: Mapping[str, Any], labels: Any = None) -> Tensor:
    """Return the loss of a batch: the step function of every head.

    `Trainer(model, compute_loss, optimizer=…)` trains on batches of `model.dataset(…)`.
    """
    if labels is None:
        raise HFError("the batch has no labels. Pass labels to model.dataset(…), too.")
    return model.compute_loss(inputs, labels)


def outputs(model: PretrainedModel, inputs: Mapping[str, Any], labels: Any = None) -> tuple[Any, Any]:
    """Return predictions and labels of a batch: `Trainer(…, metrics=model.metrics(…), outputs=outputs)`."""
    return model.outputs(inputs, labels)


def outputs_of(
    model: PretrainedModel, inputs: Mapping[str, Any], labels: Any, known: Any = None
) -> tuple[Any, Any]:
    """Return predictions and labels, one row per text; `known` is what the model returned for the batch.

    Masked LM gives the logits at masked positions only.
    """
    if model.head is Head.MASKED_LM:
        masked = select_masked(labels)
        found = model(**inputs, positions=masked.positions) if known is None else known
        return found, masked.labels
    found = model(**inputs) if known is None else known
    if "cu_seqlens" in inputs:
        return _as_rows(model.head, inputs, found, labels)
    if model.head is Head.QUESTION_ANSWERING and model.tokenizer.padding_side == "left":
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
