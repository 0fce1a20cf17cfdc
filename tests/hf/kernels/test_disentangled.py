"""Fused disentangled attention: where it is used, and the same numbers as skewed scores."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from flodl.core import HFError
from flodl.hf.heads import Head
from flodl.hf.kernels import disentangled
from flodl.hf.parts.relative import DisentangledAttention
from flodl.hf.registry import family_of

from ..families.test_models import CONFIGS


def create(placement):
    torch.manual_seed(0)
    raw = {"model_type": "deberta-v2", **CONFIGS["deberta-v2"], "attention_probs_dropout_prob": 0.1}
    family = family_of(raw)
    graph = family.create(family.read_config(raw), Head.BASE)
    for module in graph.modules():
        if isinstance(module, DisentangledAttention):
            module.placement = placement
    return graph


def run(graph):
    return graph(torch.arange(5, 14)[None], **dict.fromkeys(graph.spec.input_names))


@pytest.fixture
def calls(monkeypatch):
    """Replace the kernel, and count its calls."""
    found = []

    def attention(query, key, value, **options):
        found.append(options)
        return torch.zeros_like(query).transpose(1, 2).flatten(-2)

    monkeypatch.setattr(disentangled, "unsupported", lambda query: None)
    monkeypatch.setattr(disentangled, "attention", attention)
    return found


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
def test_the_kernel_equals_skewed_scores_in_the_interpreter():
    command = [sys.executable, str(Path(__file__).with_name("interpreted.py"))]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=280)
    if done.returncode == 5:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_cpu_is_named_when_the_kernel_is_requested():
    with pytest.raises(
        HFError, match=r'placement "fused" cannot be used: the tensors are on cpu, not on cuda'
    ):
        run(create("fused").eval())


def test_gradients_are_refused_when_the_kernel_is_requested(calls):
    with pytest.raises(HFError, match="it has no gradients"):
        run(create("fused").eval())
    assert not calls


def test_dropout_of_attention_is_refused_when_the_kernel_is_requested(calls):
    with torch.no_grad(), pytest.raises(HFError, match="it cannot drop attention weights"):
        run(create("fused").train())
    assert not calls


@torch.no_grad()
def test_automatic_placement_uses_the_kernel_for_inference_in_16_bits(calls):
    graph = create("auto").eval()
    run(graph)
    assert not calls
    run(graph.bfloat16())
    assert len(calls) == sum(isinstance(module, DisentangledAttention) for module in graph.modules())


def test_automatic_placement_uses_the_kernel_if_all_weights_are_frozen(calls):
    graph = create("auto").eval().bfloat16()
    run(graph)
    assert not calls
    run(graph.requires_grad_(False))
    assert calls


@torch.no_grad()
def test_automatic_placement_does_not_use_the_kernel_with_dropout(calls):
    run(create("auto").train().bfloat16())
    assert not calls


@pytest.mark.slow
@torch.no_grad()
def test_automatic_placement_compiles_without_graph_breaks_and_is_exported_without_the_kernel(calls):
    graph = create("auto").eval().bfloat16()
    expected = run(graph)
    calls.clear()
    found = torch.compile(run, backend="eager", fullgraph=True)(graph)
    assert calls
    torch.testing.assert_close(found, expected)
    calls.clear()
    torch.export.export(
        graph, (torch.arange(5, 14)[None],), dict.fromkeys(graph.spec.input_names), strict=False
    )
    assert not calls
