"""A small model that ranks train, and comparisons of their results."""

import torch
from torch import nn


def make_model(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    model.register_buffer("mask", torch.tensor([-torch.inf, 0.1, torch.inf]))
    return model


def train(model, seed, steps=3):
    """Take some steps that depend on the seed."""
    torch.manual_seed(seed)
    for _ in range(steps):
        model.zero_grad()
        model[2](model[1](model[0](torch.randn(8, 7)))).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad + 0.01 * torch.randn_like(parameter)


def assert_identical(results, key="values"):
    for result in results[1:]:
        assert torch.equal(result[key], results[0][key])


def assert_close(found, expected, scale=1.0):
    """A few roundings of float32."""
    torch.testing.assert_close(found.double(), expected, rtol=4e-7 * scale, atol=4e-8 * scale)
