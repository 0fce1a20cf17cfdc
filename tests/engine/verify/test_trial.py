"""Unusual models, optimizers and batches that a trial must neither disturb nor refuse."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from flodl.core import StepError
from flodl.engine import TrainStep
from flodl.engine.compile.memory_format import LayoutChoice
from flodl.engine.verify import candidate

CHANCE = torch.Generator().manual_seed(0)
DATA = [(torch.randn(8, 4, generator=CHANCE), torch.randn(8, 2, generator=CHANCE)) for _ in range(14)]


def mse(model, x, y):
    return nn.functional.mse_loss(model(x), y)


class Stateful(nn.Module):
    """Carries its hidden state in a plain attribute, as truncated backpropagation is often written."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(4, 6), nn.Linear(6, 2)
        self.hidden = torch.zeros(8, 6)

    def forward(self, x):
        hidden = self.cell(x, self.hidden)
        self.hidden = hidden.detach()
        return self.out(hidden)


class InAList(Stateful):
    def __init__(self):
        super().__init__()
        self.hidden = [torch.zeros(8, 6)]

    def forward(self, x):
        self.hidden[0] = self.cell(x, self.hidden[0].detach())
        return self.out(self.hidden[0])


class InPlace(Stateful):
    def forward(self, x):
        hidden = self.cell(x, self.hidden.clone())
        self.hidden.copy_(hidden.detach())
        return self.out(hidden)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.calls = nn.Linear(4, 2), 0

    def forward(self, x):
        self.calls += 1
        return self.line(x) * (1.0 + 0.5 * (self.calls % 3))


class Drawing(nn.Module):
    """Draws from its own generator."""

    def __init__(self, kind):
        super().__init__()
        self.line, self.kind = nn.Linear(4, 2), kind
        self.chance = {
            "torch": torch.Generator().manual_seed(3), "python": random.Random(3),
            "numpy": np.random.default_rng(3),
        }[kind]  # fmt: skip

    def forward(self, x):
        if self.kind == "torch":
            return self.line(x + torch.rand(x.shape, generator=self.chance))
        return self.line(x + self.chance.random())


class Tied(nn.Module):
    """Keeps a view of its weight, through which gradients flow in every step."""

    def __init__(self):
        super().__init__()
        self.line, self.back = nn.Linear(4, 4, bias=False), nn.Linear(4, 2)
        self.turned = self.line.weight.t()

    def forward(self, x):
        return self.back(nn.functional.linear(torch.tanh(self.line(x)), self.turned))


MODELS = {
    "a view of a weight": Tied,
    "replaced": Stateful,
    "in a list": InAList,
    "in place": InPlace,
    "a counter": Counting,
    "a generator of torch": lambda: Drawing("torch"),
    "a generator of Python": lambda: Drawing("python"),
    "a generator of NumPy": lambda: Drawing("numpy"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_trial_leaves_attributes_of_modules_as_in_eager(quick_compiler, kind):
    def losses(tier):
        torch.manual_seed(0)
        model = MODELS[kind]()
        step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.05), mse, tier=tier)
        return torch.stack([step(x, y) for x, y in DATA])

    torch.testing.assert_close(losses("compiled"), losses("eager"), rtol=1e-4, atol=1e-5)


def test_a_step_with_state_that_cannot_be_restored_is_refused(quick_compiler):
    kept = []

    def drifting(model, x, y):
        kept.append(len(kept))
        return mse(model, x, y) * (1.0 + len(kept))

    model = nn.Linear(4, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=1e-3), drifting, tier="compiled")
    for x, y in DATA:
        step(x, y)
    assert step.tier == "eager"


@pytest.mark.parametrize(
    "sizes", [[8, 8, 8, 8, 3, *[8] * 9], [8, 8, 8, 8, 12, *[8] * 9]], ids=["less", "more"]
)
def test_a_batch_of_another_size_does_not_count_against_a_tier(quick_compiler, sizes):
    model = nn.Linear(4, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), mse, tier="compiled")
    for size in sizes:
        step(torch.randn(size, 4), torch.randn(size, 2))
    assert step.tier == "compiled", step.report()


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=50),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 0.9**k),
    ],
)
def test_a_torch_scheduler_may_be_created_before_the_step(make):
    def losses(ours):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler, found = make(optimizer), []
        step = TrainStep(model, optimizer, mse, tier="eager") if ours else None
        for x, y in DATA:
            if step is not None:
                found.append(step(x, y))
            else:
                optimizer.zero_grad()
                loss = mse(model, x, y)
                loss.backward()
                optimizer.step()
                found.append(loss.detach())
            scheduler.step()
        return torch.stack(found)

    assert torch.equal(losses(True), losses(False))


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 2))


def add_a_group(optimizer, model):
    optimizer.add_param_group({"params": list(model[-1].parameters()), "lr": 0.1})


def exchange(optimizer, model):
    optimizer.param_groups.clear()
    add_a_group(optimizer, model)


def extend(optimizer, model):
    optimizer.param_groups[0]["params"].extend(model[-1].parameters())


@pytest.mark.parametrize("change", [add_a_group, exchange, extend])
@pytest.mark.parametrize("tier", ["eager", "compiled"])
@pytest.mark.parametrize(
    "settings", [{"clip_norm": 0.1}, {"clip_value": 0.01}, {"precision": "fp16"}], ids=str
)
def test_parameters_added_during_training_are_clipped_and_unscaled_like_the_others(
    quick_compiler, change, tier, settings
):
    def weights(tier):
        model = two_layers()
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        step = TrainStep(model, optimizer, mse, tier=tier, **settings)
        for number, (x, y) in enumerate(DATA):
            if number == 8:
                change(optimizer, model)
            step(x, y)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    def by_hand():
        model = two_layers()
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        for number, (x, y) in enumerate(DATA):
            if number == 8:
                change(optimizer, model)
            model.zero_grad()
            mse(model, x, y).backward()
            held = [p for group in optimizer.param_groups for p in group["params"]]
            if "clip_norm" in settings:
                nn.utils.clip_grad_norm_(held, 0.1)
            if "clip_value" in settings:
                nn.utils.clip_grad_value_(held, 0.01)
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    # A first update may be skipped until the loss scale of fp16 fits.
    close = {"rtol": 0.1, "atol": 0.2} if "precision" in settings else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(weights(tier), by_hand(), **close)


def test_a_group_added_within_a_window_is_clipped_with_it():
    def weights(ours):
        model = two_layers()
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        step = TrainStep(model, optimizer, mse, tier="eager", accumulate=2, clip_norm=0.1) if ours else None
        for number, (x, y) in enumerate(DATA[:4]):
            if number == 3:
                add_a_group(optimizer, model)
            if step is not None:
                step(x, y)
                continue
            if number % 2 == 0:
                model.zero_grad()
            (mse(model, x, y) / 2).backward()
            if number % 2:
                nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 0.1)
                optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    torch.testing.assert_close(weights(True), weights(False))


def test_sparse_gradients_are_not_coalesced_without_need():
    def weights(ours):
        torch.manual_seed(0)
        model, places = nn.Embedding(5, 3, sparse=True), torch.tensor([1, 1, 2, 1, 2, 3, 1])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        weigh = lambda m, i: (m(i) * torch.arange(7.0)[:, None]).square().mean()  # noqa: E731
        step = TrainStep(model, optimizer, weigh, tier="eager")
        for _ in range(5):
            if ours:
                step(places)
                continue
            optimizer.zero_grad()
            weigh(model, places).backward()
            optimizer.step()
        return model.weight.detach()

    assert torch.equal(weights(True), weights(False))


@pytest.mark.parametrize(
    ("batch", "samples", "told"),
    [
        (torch.ones(8, 4), 8, r"call got a Tensor\. Pass the arguments of the step function as a tuple"),
        ((torch.ones(8, 4), torch.ones(8, 2)), 0, r"samples=0\. Pass the number of samples"),
    ],
)
def test_wrong_calls_raise_helpful_errors(batch, samples, told):
    model = nn.Linear(4, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse)
    with pytest.raises(StepError, match=told):
        step.call(batch, samples=samples)


def test_the_norm_of_float64_gradients_is_float64():
    model = nn.Linear(4, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-60)
    step = TrainStep(model, optimizer, lambda m, x: m(x).mean() * 1e50, clip_norm=1.0)
    step(torch.randn(8, 4, dtype=torch.float64))
    assert torch.isfinite(step.grad_norm)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_layout_measured_by_the_worker_is_the_only_one_compiled(compiled_elsewhere, monkeypatch, is_known):
    times = {"as given": 0.003, "channels last": 0.001}
    if is_known:
        found = LayoutChoice("channels last", times, "in the process that compiled it")
        monkeypatch.setattr(compiled_elsewhere, "layout", found)
    made = []

    def noting(body, *, tune, layouts):
        made.append(layouts)
        return compile_program(body, tune=tune, layouts=layouts)

    compile_program = candidate.compile_program
    monkeypatch.setattr(candidate, "compile_program", noting)
    model = nn.Conv2d(3, 4, 3)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x).square().mean())
    for _ in range(10):
        step(torch.randn(2, 3, 8, 8))
        if step.tier == "compiled":
            break
    words = (
        "over 2 updates; images channels last (as given 3.000 ms, channels last 1.000 ms; "
        "measured in the process that compiled it)"
    )
    assert made == [("channels last",)] if is_known else [("as given", "channels last")]
    assert step.report().reason.endswith(words) is is_known
    assert "; images " in step.report().reason
