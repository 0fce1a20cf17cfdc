"""Time the fused kernel of DeBERTa's attention with different block sizes; needs a CUDA device.

    python benchmarks/deberta_blocks.py

Prints µs per layer of DeBERTa-v3-base in bf16, with 4,096 tokens in a batch, and marks the blocks in use.
"""

from __future__ import annotations

import torch

from flodl.hf.kernels.disentangled import Blocks, blocks_for, launch

HEADS, WIDTH, TOKENS, ROWS = 12, 64, 4096, 512
SHAPES = [(64, 64, 4, 2), (64, 64, 4, 1), (64, 64, 4, 3), (64, 64, 8, 2), (64, 32, 4, 2), (128, 32, 8, 2)]
SHAPES += [(128, 64, 8, 2), (64, 128, 8, 2)]


def inputs(length: int) -> tuple[torch.Tensor | None, ...]:
    """Return tensors with the strides that they have in the model."""
    batch, columns = TOKENS // length, min(ROWS, 2 * length)
    options = {"device": "cuda", "dtype": torch.bfloat16}
    query, key, value = torch.randn(3, batch, length, HEADS, WIDTH, **options).transpose(-3, -2)
    c2p, p2c = torch.randn(2, HEADS, batch, length, columns, **options).transpose(1, 2)
    rows = None
    if 2 * length > ROWS:
        rows = torch.arange(2 * length, device="cuda").mul(ROWS).div(2 * length).to(torch.int16)
    real = torch.ones(batch, 1, length, 1, **options)
    real[1::2, :, length * 3 // 4 :] = 0
    return query, key, value, c2p, p2c, rows, real


def microseconds(length: int, blocks: Blocks, calls: int = 50) -> float:
    arguments = inputs(length)

    def run() -> None:
        launch(*arguments, 0.07, 0.07, blocks)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000 / calls


@torch.no_grad()
def main() -> None:
    for length in (128, 256, 512):
        for shape in SHAPES:
            blocks = Blocks(*shape)
            used = " in use" if blocks == blocks_for(length, torch.bfloat16) else ""
            print(f"{length:4} {blocks}: {microseconds(length, blocks):7.1f} µs{used}", flush=True)


if __name__ == "__main__":
    main()
