"""The error of packed and of padded batches in bf16, against padded ones in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from rows.clock import Clock
from torch import Tensor

from .finetune import Batches, pack_batches, pad_batches
from .sizes import Sizes


def measure(sizes: Sizes, clock: Clock) -> dict[str, Any]:
    """Return relative errors of logits and gradients, averaged over batches of MR."""
    from flodl.hf import AutoModelForSequenceClassification

    lengths = sizes.lengths("MR")
    chosen = [lengths[start : start + 32] for start in range(0, 128, 32)]
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config({"model_type": "bert", **sizes.bert})
    model = model.to(sizes.device).eval()
    padded = pad_batches(sizes, chosen, multiple=1)
    packed, _ = pack_batches(sizes, chosen, np.asarray(lengths))
    expected = [_run(model, padded, index, None) for index in range(len(chosen))]
    found: dict[str, Any] = {}
    for name, batches in {"padded": padded, "packed": packed}.items():
        pairs = [(_run(model, batches, index, torch.bfloat16), want) for index, want in enumerate(expected)]
        found[f"{name} bf16"] = {
            "logits": float(np.mean([_apart(got[0], want[0]) for got, want in pairs])),
            "gradients": float(np.mean([_apart(got[1], want[1]) for got, want in pairs])),
        }
    exact = [_run(model, packed, index, None) for index in range(len(chosen))]
    found["packed float32"] = {
        "logits": float(np.mean([_apart(got[0], want[0]) for got, want in zip(exact, expected)])),
        "gradients": float(np.mean([_apart(got[1], want[1]) for got, want in zip(exact, expected)])),
    }
    return {"rivals": {}, "relative_error": found}


def _run(model: Any, batches: Batches, index: int, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Return the logits and all gradients of a batch, as one vector each."""
    inputs, labels = batches[index]
    model.zero_grad()
    device = labels.device.type
    with torch.autocast(device, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        logits = model(**inputs)[: len(labels)]
        loss = torch.nn.functional.cross_entropy(logits.float(), labels)
    loss.backward()
    gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return logits.detach().float().flatten(), torch.cat(gradients).float()


def _apart(value: Tensor, expected: Tensor) -> float:
    return float((value - expected).norm() / expected.norm())
