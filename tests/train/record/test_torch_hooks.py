"""Hooks of libraries, of torch and of flodl are not part of the record."""

import torch
from torch import nn
from torch.nn.utils import prune

from flodl.train.record.torch_hooks import describe_torch_hooks


def test_hooks_of_torch_are_left_out():
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
        nn.utils.spectral_norm(nn.Linear(2, 2)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)),
    )
    prune.l1_unstructured(model[1], "bias", amount=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert describe_torch_hooks(model, optimizer, {}) == {}


def test_a_hook_that_keeps_activations_is_the_same_after_a_call():
    model, kept = nn.Linear(2, 1), {}

    def keep(module, inputs, output):
        kept["last"] = output

    model.register_forward_hook(keep)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = describe_torch_hooks(model, optimizer, {})
    model(torch.ones(1, 2))
    assert describe_torch_hooks(model, optimizer, {}) == before
    assert list(before) == ["model.forward_hooks"]
