"""Outer optimizers against their definitions."""

import pytest
import torch

from flodl.distributed.reduction import Mean, Nesterov, SlowMomentum


def test_the_mean_adds_progress_as_it_is():
    progress = torch.tensor([1.0, -2.0])
    Mean().update(progress, None)
    assert progress.tolist() == [1.0, -2.0]
    assert not Mean().has_momentum


@pytest.mark.parametrize("nesterov", [True, False])
def test_momentum_is_that_of_torch_sgd_with_the_negative_progress(nesterov):
    """SlowMo with a constant learning rate is SGD with momentum."""
    ours = Nesterov(lr=0.7, momentum=0.9) if nesterov else SlowMomentum(lr=0.7, momentum=0.9)
    torch.manual_seed(0)
    weights = torch.nn.Parameter(torch.randn(50))
    sgd = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=nesterov)
    consensus, momentum = weights.detach().clone(), torch.zeros(50)
    for _ in range(5):
        progress = torch.randn(50)
        weights.grad = -progress
        sgd.step()
        ours.update(progress, momentum)
        consensus += progress
    torch.testing.assert_close(consensus, weights.detach(), rtol=1e-6, atol=1e-6)
    assert ours.has_momentum


def test_slow_momentum_of_zero_with_lr_1_is_the_mean():
    progress, momentum = torch.tensor([1.5, -2.0]), torch.zeros(2)
    SlowMomentum(momentum=0.0, lr=1.0).update(progress, momentum)
    assert progress.tolist() == [1.5, -2.0]
