"""The fused kernel of disentangled attention on CUDA: the same numbers as skewed scores, also compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl.core import HFError
from flodl.hf.heads import Head
from flodl.hf.kernels import disentangled
from flodl.hf.kernels.disentangled import Blocks, launch
from flodl.hf.packing import Slot, pack
from flodl.hf.parts.relative import DisentangledAttention
from flodl.hf.registry import family_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

LENGTHS = [1, 7, 64, 100, 128, 255, 512, 700]
SIZES = {
    "model_type": "deberta-v2",
    "vocab_size": 200,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
    "initializer_range": 0.1,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def create(*, terms: str = "p2c|c2p", width: int = 64, shared: bool = True) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 3 * width, "num_attention_heads": 3}
    raw = {**SIZES, **sizes, "pos_att_type": terms, "share_att_key": shared}
    family = family_of(raw)
    return family.create(family.read_config(raw), Head.BASE).eval().cuda()


def batch(length: int, mask: bool) -> dict[str, Any]:
    """Return texts with padding at the end, at the beginning, everywhere and nowhere."""
    ids = torch.randint(5, 200, (4, length), generator=torch.Generator().manual_seed(1))
    place = torch.arange(length)
    half = max(1, length // 2)
    real = torch.stack([place < half, place >= length - half, place < 0, place >= 0]).long()
    return {"input_ids": ids.cuda(), "attention_mask": real.cuda() if mask else None}


def place(graph: nn.Module, placement: str) -> nn.Module:
    for module in graph.modules():
        if isinstance(module, DisentangledAttention):
            module.placement = placement  # type: ignore[assignment]
    return graph


def run(graph: Any, inputs: dict[str, Any]) -> Tensor:
    found: Tensor = graph(inputs["input_ids"], **{name: inputs.get(name) for name in graph.spec.input_names})
    return found


def check(graph: nn.Module, inputs: dict[str, Any], dtype: torch.dtype) -> None:
    """Compare the error of the kernel with that of skewed scores in the same type."""
    exact = run(place(graph, "skew").double(), inputs)
    wide = run(graph.to(dtype), inputs).double()
    found = run(place(graph, "fused"), inputs).double()
    assert found.isfinite().all()
    error, allowed = (found - exact).abs(), (wide - exact).abs()
    if dtype == torch.float32:
        assert float(error.max()) < 1e-4, float(error.max())
        return
    assert float(error.max()) <= 2 * float(allowed.max()) + 1e-2, (float(error.max()), float(allowed.max()))
    assert float(error.norm()) <= 1.5 * float(allowed.norm()) + 1e-3, (
        float(error.norm()),
        float(allowed.norm()),
    )


@torch.no_grad()
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_kernel_is_as_exact_as_skewed_scores(length: int, mask: bool, dtype: torch.dtype) -> None:
    check(create(), batch(length, mask), dtype)


@torch.no_grad()
@pytest.mark.parametrize("length", [100, 128, 512])
@pytest.mark.parametrize("terms", ["c2p", "p2c"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_kernel_takes_one_term_with_its_own_projection(
    length: int, terms: str, dtype: torch.dtype
) -> None:
    check(create(terms=terms, shared=False), batch(length, mask=True), dtype)


@torch.no_grad()
@pytest.mark.parametrize("width", [16, 32, 96, 128])
@pytest.mark.parametrize("length", [128, 300])
def test_the_kernel_takes_heads_of_other_widths(width: int, length: int) -> None:
    check(create(width=width), batch(length, mask=True), torch.bfloat16)


@torch.no_grad()
def test_blocks_of_every_shape_give_the_same_result() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 200, 3, 64, device="cuda", dtype=torch.bfloat16).transpose(-3, -2)
    c2p, p2c = torch.randn(2, 3, 2, 200, 400, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    shapes = [(32, 32, 4, 1), (64, 32, 4, 2), (64, 64, 4, 2), (128, 64, 8, 2)]
    found = [
        launch(query, key, value, c2p, p2c, None, None, 0.1, 0.3, Blocks(*shape)).float() for shape in shapes
    ]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=2e-2, rtol=2e-2)


@torch.no_grad()
def test_a_packed_batch_equals_skewed_scores() -> None:
    graph = create()
    texts = [list(range(5, 5 + count)) for count in (60, 3, 17, 33, 1)]
    inputs = pack(texts, Slot(192, 6, 64))
    inputs = {name: value.cuda() if isinstance(value, Tensor) else value for name, value in inputs.items()}
    used = sum(map(len, texts))
    exact = run(place(graph, "skew"), inputs)[:, :used]
    found = run(place(graph, "fused"), inputs)[:, :used]
    torch.testing.assert_close(found, exact, atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@torch.no_grad()
@pytest.mark.parametrize("length", [100, 128, 512])
def test_a_compiled_model_replays_the_kernel(length: int) -> None:
    graph, inputs = create(), batch(length, mask=True)
    exact = run(place(graph, "skew").double(), inputs)
    place(graph, "auto").bfloat16()
    eager = run(graph, inputs).double()
    options = {name: inputs.get(name) for name in graph.spec.input_names}
    compiled = torch.compile(graph, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        found = compiled(inputs["input_ids"], **options).double()
    allowed = float((eager - exact).norm())
    assert float((found - exact).norm()) <= 1.5 * allowed + 1e-3


def test_the_kernel_is_chosen_for_inference_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, inputs = create(), batch(64, mask=True)
    calls = []
    kernel = disentangled.attention
    monkeypatch.setattr(
        disentangled, "attention", lambda *args, **kwargs: calls.append(1) or kernel(*args, **kwargs)
    )
    with torch.autocast("cuda", torch.bfloat16):
        run(graph, inputs).sum().backward()
        assert not calls
        with torch.no_grad():
            run(graph, inputs)
        assert len(calls) == 2
    with torch.no_grad():
        run(graph, inputs)
        assert len(calls) == 2
    with pytest.raises(HFError, match="it has no gradients"):
        run(place(graph, "fused"), inputs)


@torch.no_grad()
def test_the_kernel_runs_inside_a_recording_without_waiting() -> None:
    graph, inputs = create().bfloat16(), batch(128, mask=True)
    eager = run(graph, inputs)
    torch.cuda.synchronize()
    recording = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recording):
        found = run(graph, inputs)
    recording.replay()
    torch.cuda.synchronize()
    assert torch.equal(found, eager)
