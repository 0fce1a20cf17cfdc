"""The same model in transformers and in flodl, to compare the two."""

from __future__ import annotations

import importlib
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from flodl.graph import Graph
from flodl.hf.assignment import assign
from flodl.hf.config import EncoderConfig
from flodl.hf.heads import Head
from flodl.hf.keys import KeyMap, LoadPlan
from flodl.hf.parity import SMALL
from flodl.hf.registry import Family, family_of

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it calls torch.jit.script
    importlib.import_module("transformers.models.deberta_v2.modeling_deberta_v2")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@dataclass
class Pair:
    """One model twice, with the same weights."""

    family: Family
    head: Head
    config: EncoderConfig
    reference: nn.Module
    graph: Graph
    keys: KeyMap
    plan: LoadPlan
    padding_differs: bool = False

    def close(self, inputs: dict[str, Tensor], tolerance: float, *, gradients: float | None = None) -> None:
        """Compare outputs, and the gradients of every parameter."""
        expected, found = as_tuple(self.expected(inputs)), as_tuple(self.found(inputs))
        assert len(expected) == len(found)
        for reference, value in zip(expected, found):
            assert value.shape == reference.shape
            if self.padding_differs:
                real = real_like(value, inputs.get("attention_mask", torch.ones(())))
                reference, value = reference * real, value * real
            assert error(value, reference) <= tolerance
        torch.manual_seed(1)
        weights = [torch.randn(value.shape, dtype=value.dtype) / value.numel() ** 0.5 for value in expected]
        if self.family.model_type == "modernbert" and "attention_mask" in inputs:
            # Where a local window has no real token, the result does not depend on the query, but
            # transformers passes it a gradient. Only padding is affected, so no loss should come from it.
            weights = [weight * real_like(weight, inputs["attention_mask"]) for weight in weights]
        for model, values in ((self.reference, expected), (self.graph, found)):
            model.zero_grad()
            sum((value * weight).sum() for value, weight in zip(values, weights)).backward()
        theirs = dict(self.reference.named_parameters(remove_duplicate=False))
        for name, parameter in self.graph.named_parameters():
            reference = theirs[self.keys.key_of(name)].grad
            if parameter.grad is None or reference is None:
                assert reference is None or not reference.any(), name
                assert parameter.grad is None or not parameter.grad.any(), name
                continue
            assert error(parameter.grad, reference) <= (gradients or tolerance), name

    def expected(self, inputs: dict[str, Tensor]) -> Any:
        """Return what transformers computes."""
        output = self.reference(**inputs)
        match self.head:
            case Head.BASE:
                return output.last_hidden_state
            case Head.QUESTION_ANSWERING:
                return output.start_logits, output.end_logits
        return output.logits

    def found(self, inputs: dict[str, Tensor]) -> Any:
        """Return what flodl computes."""
        others = {name: inputs.get(name) for name in self.graph.spec.input_names}
        return self.graph(inputs["input_ids"], **others)


def pair(model_type: str, head: str | Head, *, dtype: torch.dtype = torch.float32, **options: Any) -> Pair:
    """Build a small model in transformers, with random weights everywhere, and load it as a graph."""
    head = Head(head)
    labels = {"num_labels": 2 if head is Head.QUESTION_ANSWERING else 3}
    config = transformers.AutoConfig.for_model(model_type, **{**SMALL, **labels, **options})
    # The eager attention of ModernBERT computes its softmax in float32, whatever the type of the model.
    exact = "sdpa" if model_type == "modernbert" and dtype is torch.float64 else "eager"
    reference = reference_model(config, head, attention=exact).to(dtype)
    family = family_of(config.to_dict())
    ours = family.read_config(config.to_dict())
    graph = family.build(ours, head).to(dtype)
    keys = family.keys(ours, head)
    tensors = saved(reference)
    plan = keys.plan(graph, tensors)
    assign(graph, {name: tensors[key] for name, key in plan.sources.items()})
    return Pair(
        family, head, ours, reference.eval(), graph.eval(), keys, plan, padding_differs=exact == "sdpa"
    )


def reference_model(config: Any, head: Head, *, attention: str = "eager") -> nn.Module:
    """Build a model of transformers in which no parameter is zero or one by default."""
    auto = getattr(transformers, "AutoModel" + head.suffix.removeprefix("Model"))
    torch.manual_seed(0)
    model = auto.from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.dim() == 1 else 0.1))
    return model


def saved(model: nn.Module) -> dict[str, Tensor]:
    """Return what `save_pretrained` writes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def batch(vocab: int = 60, *, pad: int = 0, length: int = 11, token_types: int = 2) -> dict[str, Tensor]:
    """Return sentences of 11, 4 and 7 tokens, padded."""
    torch.manual_seed(2)
    lengths = torch.tensor([length, 4, 7])
    real = torch.arange(length) < lengths[:, None]
    ids = torch.randint(5, vocab, (3, length)).masked_fill(~real, pad)
    found = {"input_ids": ids, "attention_mask": real.long()}
    if token_types:
        found["token_type_ids"] = torch.randint(0, token_types, ids.shape)
    return found


def error(value: Tensor, reference: Tensor) -> float:
    """Return the largest difference, relative to max(1, |reference|)."""
    return float(((value - reference).abs().detach() / reference.detach().abs().clamp(min=1)).max())


def real_like(value: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the attention mask in a shape that multiplies outputs for each token; 1 for pooled outputs."""
    if value.shape[:2] != attention_mask.shape:
        return torch.ones(())
    return attention_mask.reshape(*attention_mask.shape, *[1] * (value.dim() - 2))


def as_tuple(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)
