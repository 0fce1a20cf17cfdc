"""State besides parameters that research code changes in a step, and that a trial must leave as in eager."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from flodl import FlowBuilder
from flodl.engine import TrainStep

CHANCE = torch.Generator().manual_seed(0)
DATA = [(torch.randn(8, 4, generator=CHANCE), torch.randn(8, 2, generator=CHANCE)) for _ in range(12)]
seen_so_far = 0


def mse(model, x, y):
    return functional.mse_loss(model(x), y)


class Run:
    """A model, its step function, what follows a step, and what must be equal in the end."""

    def __init__(self, model: nn.Module, step_fn=mse, *, learns=None, ends=(), lr: float = 0.1) -> None:
        self.model, self.step_fn, self.ends = model, step_fn, ends
        self.optimizer = torch.optim.SGD(learns or model.parameters(), lr=lr)

    def follow(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """What the user's loop does after a step."""

    def end(self) -> list[torch.Tensor]:
        return [*self.model.parameters(), *(torch.as_tensor(end()) for end in self.ends)]


class Keeping(nn.Module):
    """A layer whose output depends on state that it changes."""

    def __init__(self, kept: Any, change) -> None:
        super().__init__()
        self.line, self.kept, self.change = nn.Linear(4, 2), kept, change

    def forward(self, x):
        out = self.line(x)
        return out + self.change(self.kept, out.detach().mean(0))


@dataclass
class Average:
    value: torch.Tensor


class Plain:
    def __init__(self) -> None:
        self.value = torch.zeros(2)


def in_place(kept, news):
    kept[0].mul_(0.9).add_(0.1 * news)
    return kept[0].clone()


def by_key(kept, news):
    kept["a"] = 0.9 * kept["a"] + 0.1 * news
    return kept["a"]


def by_name(kept, news):
    kept.value = 0.9 * kept.value + 0.1 * news
    return kept.value


def through_data(kept, news):
    kept.data.mul_(0.9).add_(0.1 * news)
    return kept.clone()


def of_numpy(kept, news):
    kept *= 0.9
    kept += 0.1
    return torch.from_numpy(kept.copy())


def large(kept, news):
    kept.mul_(0.9).add_(0.1)
    return kept[:2].clone()


KEPT = {
    "a tuple": (lambda: (torch.zeros(2), 1), in_place),
    "an ordered dict": (lambda: OrderedDict(a=torch.zeros(2)), by_key),
    "a dict with defaults": (lambda: defaultdict(lambda: torch.zeros(2)), by_key),
    "a dataclass": (lambda: Average(torch.zeros(2)), by_name),
    "an object": (Plain, by_name),
    "a tensor through .data": (lambda: torch.zeros(2), through_data),
    "an array": (lambda: np.zeros(2, dtype=np.float32), of_numpy),
    "a large tensor": (lambda: torch.zeros(300_000), large),
}


def keeping(kind):
    def make() -> Run:
        kept, change = KEPT[kind]
        return Run(Keeping(kept(), change))

    return make


class Byol(nn.Module):
    """Updates its target network, which is in no optimizer, in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            for target, online in zip(self.target.parameters(), self.online.parameters()):
                target.lerp_(online, 0.05)
        return self.online(x) - self.target(x + 1)


def byol() -> Run:
    model = Byol()
    return Run(model, learns=model.online.parameters())


def replaced_data() -> Run:
    class Moco(Byol):
        def forward(self, x):
            for target, online in zip(self.target.parameters(), self.online.parameters()):
                target.data = target.data * 0.95 + online.data * 0.05
            return self.online(x) - self.target(x + 1)

    model = Moco()
    return Run(model, learns=model.online.parameters())


class TwoOptimizers(Run):
    """The step trains one layer, and the loop updates the other itself."""

    def __init__(self) -> None:
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        super().__init__(model, learns=model[0].parameters())
        self.other = torch.optim.SGD(model[2].parameters(), lr=0.1)

    def follow(self, x, y):
        self.other.step()
        self.other.zero_grad()


def closed_over_generator() -> Run:
    source, numbers = torch.Generator().manual_seed(3), np.random.default_rng(3)

    def noisy(model, x, y):
        noise = torch.rand(x.shape, generator=source) + float(numbers.random())
        return mse(model, x + 0.1 * noise, y)

    return Run(nn.Linear(4, 2), noisy)


def closed_over_counter() -> Run:
    calls = 0

    def counting(model, x, y):
        nonlocal calls
        calls += 1
        return mse(model, x, y) * (1 + 0.1 * (calls % 3))

    return Run(nn.Linear(4, 2), counting, ends=[lambda: float(calls)])


def global_counter() -> Run:
    global seen_so_far
    seen_so_far = 0

    def counting(model, x, y):
        global seen_so_far
        seen_so_far += 1
        return mse(model, x, y)

    return Run(nn.Linear(4, 2), counting, ends=[lambda: float(seen_so_far)])


def closed_over_module() -> Run:
    teacher = nn.Sequential(nn.Linear(4, 2, bias=False), nn.BatchNorm1d(2)).requires_grad_(False)

    def distil(model, x, y):
        return functional.mse_loss(model(x), teacher(x))

    statistics = teacher[1]
    ends = [lambda: statistics.running_mean, lambda: statistics.num_batches_tracked]
    return Run(nn.Linear(4, 2), distil, ends=ends)


def criterion_with_a_centre() -> Run:
    class Criterion:
        def __init__(self) -> None:
            self.centre = torch.zeros(2)

        def __call__(self, model, x, y):
            out = model(x)
            self.centre = 0.9 * self.centre + 0.1 * out.detach().mean(0)
            return functional.mse_loss(out - self.centre, y)

    return Run(nn.Linear(4, 2), Criterion())


def batch_in_place() -> Run:
    def halving(model, x, y):
        x.mul_(0.5)
        return mse(model, x, y)

    return Run(nn.Linear(4, 2), halving)


class DetachedByTheLoop(Run):
    """Carries its hidden state with its autograd history, which the loop detaches."""

    def __init__(self) -> None:
        class Recurrent(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cell, self.out, self.hidden = nn.GRUCell(4, 4), nn.Linear(4, 2), torch.zeros(8, 4)

            def forward(self, x):
                self.hidden = self.cell(x, self.hidden)
                return self.out(self.hidden)

        super().__init__(Recurrent())

    def follow(self, x, y):
        self.model.hidden = self.model.hidden.detach()


def carrying_graph() -> Run:
    return Run(carrying_model())


class SharedContext(Run):
    """Two modules that exchange a value through a shared object."""

    def __init__(self) -> None:
        class Writes(nn.Linear):
            def forward(self, x):
                self.context.value = out = super().forward(x)
                return out

        class Reads(nn.Linear):
            def forward(self, x):
                return super().forward(x) + self.context.value[:, :2]

        model = nn.Sequential(Writes(4, 4), Reads(4, 2))
        model[0].context = model[1].context = Average(torch.zeros(1))
        super().__init__(model)


RUNS: dict[str, Any] = {
    **{kind: keeping(kind) for kind in KEPT},
    "a target that the forward moves": byol,
    "a target whose memory is replaced": replaced_data,
    "two optimizers": TwoOptimizers,
    "generators in a closure": closed_over_generator,
    "a counter in a closure": closed_over_counter,
    "a global counter": global_counter,
    "a module in a closure": closed_over_module,
    "a criterion that keeps a centre": criterion_with_a_centre,
    "a batch that is written to": batch_in_place,
    "a state that the loop detaches": DetachedByTheLoop,
    "a graph that carries values": carrying_graph,
    "a context of two modules": SharedContext,
}


WITHIN_WINDOWS = ("a tuple", "two optimizers", "a counter in a closure", "a batch that is written to")


@pytest.mark.parametrize(
    ("kind", "accumulate"), [*((kind, 1) for kind in RUNS), *((kind, 2) for kind in WITHIN_WINDOWS)]
)
def test_a_trial_leaves_no_trace(quick_compiler, kind, accumulate):
    def come_to(tier):
        torch.manual_seed(0)
        run = RUNS[kind]()
        settings = {"tier": tier, "accumulate": accumulate}
        step, losses = TrainStep(run.model, run.optimizer, run.step_fn, **settings), []
        for x, y in copy.deepcopy(DATA):
            losses.append(step(x, y))
            run.follow(x, y)
        assert tier == "eager" or step.report().events
        return [torch.stack(losses), *run.end()]

    torch.testing.assert_close(come_to("compiled"), come_to("eager"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"clip_norm": 0.1}], ids=["plain", "clipped"])
def test_gradients_can_be_read_after_every_step(quick_compiler, settings):
    def read(tier):
        torch.manual_seed(0)
        model, found = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), []
        step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, tier=tier, **settings)
        for x, y in copy.deepcopy(DATA):
            x.requires_grad_()
            step(x, y)
            found.append(torch.cat([x.grad.flatten(), *(p.grad.flatten() for p in model.parameters())]))
        return torch.stack(found)

    torch.testing.assert_close(read("compiled"), read("eager"), rtol=1e-4, atol=1e-5)


def test_retain_grad_works_on_a_stored_value(quick_compiler):
    class Retaining(nn.Linear):
        def forward(self, x):
            self.last = super().forward(x)
            self.last.retain_grad()
            return self.last

    model = nn.Sequential(Retaining(4, 4), nn.Linear(4, 2))
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, tier="compiled")
    for x, y in DATA:
        step(x, y)
        assert model[0].last.grad is not None


@pytest.mark.parametrize("place", ["closure", "attribute"])
def test_an_iterator_that_the_step_reads_keeps_it_eager(quick_compiler, place):
    more = cycle([torch.ones(8, 4), torch.zeros(8, 4)])
    model = nn.Linear(4, 2)
    if place == "attribute":
        model.more = more
    reads = [0]

    def reading(model, x, y):
        reads[0] += 1
        return mse(model, x + next(model.more if place == "attribute" else more), y)

    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), reading, tier="compiled")
    for x, y in DATA:
        step(x, y)
    assert reads == [len(DATA)]
    assert step.tier == "eager"
    assert "it reaches an iterator (cycle)" in step.report().reason


def test_two_threads_leave_the_compiler_as_it_was(quick_compiler):
    import threading

    def train() -> None:
        model = nn.Linear(4, 2)
        step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, tier="compiled")
        for _ in range(5):
            for x, y in DATA:
                step(x, y)

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.compile(lambda x: x.sin() + 1)(torch.zeros(2)).tolist() == [1.0, 1.0]


class Mixing(nn.Linear):
    def forward(self, x, before=None):
        out = super().forward(x)
        return out if before is None else out + 0.5 * before


def carrying_model():
    return FlowBuilder(Mixing(4, 2)).using("before").tag("before").through(nn.Identity()).build()


@pytest.mark.parametrize("first", [0, 3])
def test_a_skipped_update_carries_nothing_over(first):
    """A value carried over from a batch that is not finite would break all later batches."""
    torch.manual_seed(0)
    model = carrying_model()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, tier="eager")
    for number, (x, y) in enumerate(DATA):
        loss = step(x * torch.nan if number == first else x, y)
        assert torch.isfinite(loss) == (number != first)
    assert int(step.num_skipped) == 1


def test_a_step_of_a_carrying_graph_can_be_copied():
    model = carrying_model()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, tier="eager")
    step(*DATA[0])
    twin = copy.deepcopy(step)
    assert not torch.isfinite(twin(DATA[1][0] * torch.nan, DATA[1][1]))
    assert torch.equal(twin(*DATA[2]), step(*DATA[2]))
