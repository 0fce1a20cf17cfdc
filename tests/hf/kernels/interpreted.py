"""Compare the fused kernel with skewed scores in Triton's interpreter; test_disentangled.py runs it."""

import sys

import torch
import triton
import triton.language as tl

from flodl.hf.heads import Head
from flodl.hf.kernels import disentangled
from flodl.hf.kernels.disentangled import Blocks, launch
from flodl.hf.parts.relative import DisentangledAttention
from flodl.hf.registry import family_of

SIZES = {
    "model_type": "deberta-v2",
    "vocab_size": 100,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "max_position_embeddings": 128,
    "relative_attention": True,
    "position_buckets": 32,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
    "initializer_range": 0.3,
}


def create(*, terms, width, shared):
    torch.manual_seed(0)
    sizes = {"hidden_size": 2 * width, "num_attention_heads": 2}
    raw = {**SIZES, **sizes, "pos_att_type": terms, "share_att_key": shared}
    family = family_of(raw)
    return family.create(family.read_config(raw), Head.BASE).eval()


def run(graph, placement, inputs):
    for module in graph.modules():
        if isinstance(module, DisentangledAttention):
            module.placement = placement
    return graph(inputs["input_ids"], **{name: inputs.get(name) for name in graph.spec.input_names})


def batch(length, mask):
    ids = torch.randint(5, 100, (3, length), generator=torch.Generator().manual_seed(1))
    place = torch.arange(length)
    # Padding at the end, at the beginning, and everywhere.
    real = torch.stack([place < max(1, length // 2), place >= length // 2, place < 0])
    return {"input_ids": ids, "attention_mask": real.long() if mask else None}


def compare(length, *, mask, dtype=torch.float32, terms="p2c|c2p", width=16, shared=True, compiled=False):
    graph = create(terms=terms, width=width, shared=shared)
    inputs = batch(length, mask)
    exact = run(graph, "skew", inputs)
    graph = graph.to(dtype)
    call = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=False) if compiled else run
    found = call(graph, "fused", inputs)
    worst = float((found - exact).abs().max())
    print(f"length {length}, {mask=}, {dtype}, {terms}, {width=}, {shared=}, {compiled=}: {worst:.2g}")
    assert found.isfinite().all()
    assert worst < (2e-5 if dtype == torch.float32 else 0.02), "too large"


def packed():
    from flodl.hf.packing import Slot, pack

    graph = create(terms="p2c|c2p", width=16, shared=True)
    texts = [list(range(5, 5 + count)) for count in (20, 3, 9)]
    inputs = pack(texts, Slot(64, 4, 24))
    exact, found = (run(graph, placement, inputs)[:, :32] for placement in ("skew", "fused"))
    torch.testing.assert_close(found, exact, atol=2e-5, rtol=0)


def blocks():
    """Blocks of every shape give the same result, also for strided inputs."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 48, 3, 16).transpose(-3, -2)
    c2p, p2c = torch.randn(2, 3, 2, 48, 96).transpose(1, 2)
    found = [
        launch(query, key, value, c2p, p2c, None, None, 0.2, 0.3, Blocks(*shape, 4, 1))
        for shape in ((16, 16), (32, 16), (16, 64), (64, 32))
    ]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-5, rtol=0)


@triton.jit
def count(output, length):
    total = 0
    for _ in range(length):
        total += 1
    tl.store(output, total)


@torch.no_grad()
def main():
    try:
        count[(1,)](torch.zeros(1, dtype=torch.int32), 3)
    except Exception as error:  # loops fail with some versions of NumPy
        print(f"the interpreter does not work: {error}")
        return 5
    disentangled.unsupported = lambda query: None
    for length in (1, 7, 16, 33, 64, 70):
        for mask in (True, False):
            compare(length, mask=mask)
    for length in (20, 70):
        compare(length, mask=True, terms="c2p", shared=False)
        compare(length, mask=True, terms="p2c", shared=False)
        compare(length, mask=True, width=24)
        compare(length, mask=True, dtype=torch.float16)
    compare(20, mask=True, compiled=True)
    packed()
    blocks()
    return 0


if __name__ == "__main__":
    sys.exit(main())
