"""Every family of flodl.hf on the captured tier: one recording, and the same losses as eager."""

import pytest
import torch

from flodl import TrainStep
from flodl.hf.heads import Head

from ..hf.families.test_models import FAMILIES, batch, create, loss_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_captured_step_equals_an_eager_one(family, precision):
    losses = {}
    for tier in ("eager", "captured"):
        graph = create(family, Head.SEQUENCE_CLASSIFICATION).cuda()
        ids, mask = (value.cuda() for value in batch())
        labels = torch.tensor([0, 1, 1], device="cuda")
        optimizer = torch.optim.AdamW(graph.parameters(), lr=1e-3)
        torch.manual_seed(3)
        step = TrainStep(graph, optimizer, loss_of, tier=tier, precision=precision)
        losses[tier] = [float(step((ids, mask, labels))) for _ in range(12)]
        assert step.report().tier == tier
    assert losses["captured"] == losses["eager"]
