"""Several ranks on one GPU, and on a GPU and the CPU: quality, coverage, and `sync` equal to one device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

GPU = "cuda:0"


def loss_of(model, x, y):
    return (model(x) - y).square().mean()


def train(**where):
    torch.manual_seed(0)
    x = torch.randn(512, 8)
    y = x.sum(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    trainer = Trainer(
        model,
        loss_of,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=0.01),
        schedule=lambda step: 0.01 / (1 + 0.01 * step),
        monitor=False,
        **where,
    )
    return model, trainer.fit((x, y), epochs=4, batch_size=16, eval_data=(x, y))


@pytest.mark.parametrize("devices", [[GPU, GPU], [GPU, "cpu"], ["cpu", GPU]])
@pytest.mark.parametrize("policy", ["cadence", "async"])
def test_ranks_share_a_gpu_or_train_on_different_devices(devices, policy):
    model, result = train(devices=devices, policy=policy)
    assert result.steps == 128
    assert result.ranks.samples == 4 * 512
    assert result.metrics["eval_loss"] < 0.5 * result.history[0]["loss"]
    assert str(next(model.parameters()).device) == devices[0]
    # NCCL refuses two ranks on one GPU, and ranks on the CPU.
    assert result.ranks.link.startswith("host: NCCL cannot be used: ")
    if devices == [GPU, GPU]:
        assert result.ranks.link.endswith("ranks 0 and 1 share a GPU")
    assert not any(rank.lost for rank in result.ranks.ranks)


def test_sync_on_a_shared_gpu_equals_one_device():
    alone, expected = train(device=GPU)
    together, result = train(devices=[GPU, GPU], policy="sync")
    for mine, theirs in zip(together.parameters(), alone.parameters()):
        assert torch.allclose(mine, theirs, rtol=0.0, atol=1e-4)
    assert result.metrics["eval_loss"] == pytest.approx(expected.metrics["eval_loss"], rel=1e-3)
