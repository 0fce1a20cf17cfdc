"""What a model keeps from earlier steps, and how its autograd history is cut."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from flodl import FlowBuilder
from flodl.engine.device.autograd_history import cut_history, has_live_history


class Keeping(nn.Linear):
    def forward(self, x):
        self.last = super().forward(x)
        self.nested = {"pair": (self.last, "name"), "list": [self.last]}
        return self.last


def test_attributes_of_modules_stay_without_their_history():
    model = nn.Sequential(Keeping(3, 2), nn.ReLU())
    model(torch.ones(1, 3)).sum().backward()
    before, nested = model[0].last.detach().clone(), model[0].nested
    assert has_live_history(model.parameters())
    cut_history(model)
    assert not has_live_history(model.parameters())
    assert torch.equal(model[0].last, before)
    assert model[0].nested is nested
    assert nested["pair"][1] == "name"


def test_tagged_values_of_a_graph_stay_without_their_history():
    inner = FlowBuilder(nn.Linear(3, 3)).tag("hidden").label("inner").build()
    model = nn.Sequential(FlowBuilder(inner).through(nn.Linear(3, 2)).tag("out").build())
    model(torch.ones(1, 3)).sum().backward()
    before = model[0].tagged("out").detach().clone()
    assert has_live_history(model.parameters())
    cut_history(model)
    assert not has_live_history(model.parameters())
    assert torch.equal(model[0].tagged("out"), before)


def test_a_weight_that_is_computed_in_every_forward_still_learns():
    model = nn.utils.spectral_norm(nn.Linear(3, 2))
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
        cut_history(model)
    assert not has_live_history(model.parameters())
    assert model.weight_orig.grad is not None


def test_a_history_held_elsewhere_is_detected():
    model = nn.Linear(3, 2)
    losses = [model(torch.ones(1, 3)).sum()]
    cut_history(model)
    assert has_live_history(model.parameters())
    losses.clear()
    assert not has_live_history(model.parameters())


def test_frozen_parameters_are_skipped():
    model = nn.Linear(3, 2).requires_grad_(False)
    assert not has_live_history(model.parameters())


def test_histories_in_containers_of_every_kind_are_cut():
    class Pair(NamedTuple):
        one: torch.Tensor
        other: str

    @dataclass
    class Output:
        hidden: torch.Tensor

    model = nn.Linear(3, 2)
    kept = model(torch.ones(1, 3))
    itself: list = [kept]
    itself.append(itself)
    model.all = [OrderedDict(a=kept), deque([kept]), Pair(kept, "name"), Output(kept), itself]
    model.output = Output(kept)
    del kept, itself[0]
    assert has_live_history(model.parameters())
    cut_history(model)
    assert not has_live_history(model.parameters())
    assert model.all[2].other == "name"


def test_a_module_that_cannot_detach_its_state_is_skipped():
    class Awkward(nn.Linear):
        def detach_state(self, which):
            raise AssertionError("nobody asked for which")

    model = FlowBuilder(Awkward(3, 3)).through(nn.Linear(3, 2)).tag("out").build()
    out = model(torch.ones(1, 3)).detach()
    cut_history(model)
    assert torch.equal(model.tagged("out"), out)


def test_lasting_tensors_keep_their_history():
    model = nn.Linear(3, 3)
    model.turned, model.pair = model.weight.t(), (model.weight.t(), model.weight * 2)
    cut_history(model, [model.turned, model.pair[0]])
    assert model.turned.grad_fn is not None
    assert model.pair[0].grad_fn is not None
    assert model.pair[1].grad_fn is None


def test_a_shared_dataclass_stays_one_object():
    @dataclass
    class Context:
        hidden: torch.Tensor | None = None

    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].context = model[1].context = context = Context()
    context.hidden = model(torch.ones(1, 3))
    cut_history(model)
    assert model[0].context is model[1].context is context
    assert context.hidden.grad_fn is None


def test_a_retained_gradient_stays_readable():
    model = nn.Linear(3, 2)
    model.last = model(torch.ones(1, 3))
    model.last.retain_grad()
    model.last.sum().backward()
    cut_history(model)
    assert torch.equal(model.last.grad, torch.ones(1, 2))
