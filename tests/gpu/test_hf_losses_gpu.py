"""The losses of Hugging Face heads inside a captured step: nothing waits, and the bits are those of eager."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flodl.engine import TrainStep
from flodl.hf.heads import Head
from flodl.hf.losses import compute_loss
from flodl.hf.parity import small_config
from flodl.hf.registry import family_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

RAW = {**small_config("bert"), "vocab_size": 100, "num_labels": 3}
HEADS = [head for head in Head if head is not Head.BASE]


def batches(head: Head, count: int, device: str) -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator(device).manual_seed(1)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=source, device=device)

    found = []
    for _ in range(count):
        ids = integers(5, 90, 16, 24)
        match head:
            case Head.SEQUENCE_CLASSIFICATION:
                labels = integers(0, 3, 16)
            case Head.TOKEN_CLASSIFICATION:
                labels = integers(0, 3, 16, 24)
            case Head.QUESTION_ANSWERING:
                labels = integers(0, 30, 16, 2)
            case _:
                labels = torch.where(integers(0, 100, 16, 24) < 15, ids, -100)
        found.append((ids, labels))
    return found


def trained(
    head: Head, tier: str, given: list[tuple[Tensor, Tensor]], device: str
) -> tuple[TrainStep, Tensor]:
    family = family_of(RAW)
    config = family.read_config(RAW)
    torch.manual_seed(0)
    graph = family.create(config, head).to(device).train()

    def loss_of(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
        def forward(input_ids: Tensor, **inputs: Tensor) -> object:
            return model(input_ids, **{name: inputs.get(name) for name in graph.spec.input_names})

        return compute_loss(forward, {"input_ids": ids}, labels, head=head, config=config)

    step = TrainStep(graph, torch.optim.AdamW(graph.parameters(), lr=1e-3), loss_of, tier=tier)
    return step, torch.stack([step(*batch) for batch in given])


@pytest.mark.filterwarnings("ignore:Memory Efficient attention")
@pytest.mark.filterwarnings("ignore:Deterministic behavior was enabled")
@pytest.mark.parametrize("head", HEADS)
def test_a_captured_loss_has_the_bits_of_eager(head: Head) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        given = batches(head, 30, "cuda")
        _, eager = trained(head, "eager", given, "cuda")
        step, captured = trained(head, "captured", given, "cuda")
    finally:
        torch.use_deterministic_algorithms(False)
    assert step.report().tier == "captured", step.report().reason
    assert torch.equal(eager, captured)
