"""Runs of a window in more precise numbers."""

from __future__ import annotations

import torch

from flodl.engine.verify.reruns import with_activations_on_host


def test_a_run_gives_the_same_gradients_with_its_activations_on_the_host() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    x = torch.randn(3, 4)

    def grads() -> list[torch.Tensor]:
        model.zero_grad()
        model(x).sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    assert all(map(torch.equal, with_activations_on_host(grads, offload=True), grads()))


def test_a_step_with_a_transform_of_torch_func_runs_without() -> None:
    x = torch.randn(3)
    calls = []

    def run() -> torch.Tensor:
        calls.append(len(calls))
        return torch.func.grad(lambda x: x.square().sum())(x)

    assert torch.equal(with_activations_on_host(run, offload=True), 2 * x)
    assert calls == [0, 1]
    assert torch.equal(with_activations_on_host(run, offload=False), 2 * x)
