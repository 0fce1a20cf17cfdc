"""A reducer is called once per update, between backward and clipping, whatever the ranks run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl.core import StepError
from flodl.engine import TrainStep, update_without_batch
from flodl.optim import CosineScheduler


class Recorder:
    """A reducer that keeps what it was called with, and adds what other ranks contribute."""

    def __init__(self, change=None) -> None:
        self.calls: list[tuple[list[torch.Tensor], float]] = []
        self.change = change

    def __call__(self, gradients, weight) -> None:
        self.calls.append(([gradient.clone() for gradient in gradients], weight))
        if self.change is not None:
            self.change(gradients)

    @property
    def weights(self) -> list[float]:
        return [weight for _, weight in self.calls]


def mse(model, x, y):
    return (model(x) - y).square().mean()


def new_step(reducer, *, step_fn=mse, model=None, lr=0.1, **settings):
    torch.manual_seed(0)
    model = nn.Linear(3, 2) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return model, TrainStep(model, optimizer, step_fn, reduce_gradients=reducer, **settings)


def batch(size: int = 4, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, generator=generator), torch.randn(size, 2, generator=generator)


def test_gradients_are_reduced_before_they_are_clipped():
    recorder = Recorder(lambda gradients: gradients[0].fill_(10.0))
    model, step = new_step(recorder, clip_norm=1.0)
    before = model.weight.detach().clone()
    step(*batch())
    assert recorder.calls[0][0][0].norm() > 0.1  # not clipped yet
    assert step.grad_norm > 20
    assert torch.allclose(torch.cat([before - model.weight.detach()]).norm(), torch.tensor(0.1), atol=1e-2)


def test_the_flag_that_another_rank_sets_skips_the_update():
    model, step = new_step(Recorder(lambda gradients: gradients[-1][-1].fill_(0.25)))
    before = model.weight.detach().clone()
    step(*batch())
    assert torch.equal(model.weight, before)
    assert (int(step.num_skipped), bool(step.skipped), step.updates) == (1, True, 1)


def test_a_frozen_parameter_is_not_reduced():
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    recorder = Recorder()
    _, step = new_step(recorder, model=model)
    step(*batch())
    assert [tuple(gradient.shape) for gradient in recorder.calls[0][0]] == [(2, 3), (2,)]  # and the flags
    assert model.bias.grad is None


def test_a_parameter_that_only_another_rank_uses_gets_its_gradient():
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "other": nn.Linear(3, 2)})

    def on_another_rank(gradients):
        gradients[2].fill_(1.0)
        gradients[-1][2] = 0.5

    def step_fn(model, x, y):
        return mse(model["used"], x, y)

    before = model["other"].weight.detach().clone()
    recorder = Recorder(on_another_rank)
    _, step = new_step(recorder, model=model, step_fn=step_fn)
    step(*batch())
    assert recorder.calls[0][0][-1].tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert not recorder.calls[0][0][2].any()
    assert torch.allclose(model["other"].weight, before - 0.1)
    assert model["other"].bias.grad is None


@pytest.mark.parametrize("tier", ["auto", "compiled"])
def test_weights_are_the_samples_of_each_window(tier, quick_compiler):
    recorder = Recorder()
    _, step = new_step(recorder, accumulate=2, tier=tier)
    for size in (4, 4, 4, 2, 4):
        step(*batch(size))
    assert recorder.weights == [8, 6]
    step.flush()
    step.flush()
    assert recorder.weights == [8, 6, 4]


def test_padded_rows_do_not_count():
    def masked(model, x, y, *, mask):
        rows = (model(x) - y).square().mean(1)
        return (rows * mask).sum() / mask.sum()

    recorder = Recorder()
    _, step = new_step(recorder, step_fn=masked, tail="pad")
    step(*batch(4))
    step(*batch(3))
    assert recorder.weights == [4, 3]


def test_given_sample_counts_are_the_weights():
    recorder = Recorder()
    _, step = new_step(recorder)
    step.call(batch(4), samples=2)
    assert recorder.weights == [2]


def test_a_ragged_window_is_corrected_before_it_is_reduced():
    recorder, plain = Recorder(), {}
    for name, reducer in (("reduced", recorder), ("plain", None)):
        model, step = new_step(reducer, accumulate=2, clip_norm=0.1)
        step(*batch(4))
        step(*batch(2))
        plain[name] = model.weight.detach().clone()
    assert torch.equal(plain["reduced"], plain["plain"])


@pytest.mark.parametrize(
    "settings", [{}, {"strict": True}, {"precision": "bf16"}, {"precision": "fp16"}], ids=str
)
def test_a_reducer_that_changes_nothing_changes_no_bit(settings):
    states = []
    for reducer in (None, Recorder()):
        model, step = new_step(reducer, clip_norm=0.5, **settings)
        for seed in range(6):
            step(*batch(4, seed))
        states.append(model.weight.detach().clone())
    assert torch.equal(*states)


def test_an_error_of_the_reducer_makes_no_update():
    def fail(gradients):
        raise ConnectionError("a rank was lost")

    recorder = Recorder(fail)
    model, step = new_step(recorder, schedule=CosineScheduler(0.1, 0.0, 10))
    before = model.weight.detach().clone()
    with pytest.raises(ConnectionError, match="a rank was lost"):
        step(*batch())
    assert torch.equal(model.weight, before)
    assert (step.steps, step.updates, model.weight.grad) == (0, 0, None)
    recorder.change = None
    step(*batch())
    assert (step.steps, step.updates) == (1, 1)
    assert not torch.equal(model.weight, before)


def test_a_compiled_step_is_tried_without_the_reducer(quick_compiler):
    recorder = Recorder()
    _, step = new_step(recorder, tier="compiled", clip_norm=0.5)
    for seed in range(12):
        step(*batch(4, seed))
    assert step.tier == "compiled", step.report()
    assert len(recorder.calls) == step.updates == 12


def test_an_update_without_a_batch_moves_the_schedule_and_contributes_nothing():
    def from_another_rank(gradients):
        for gradient in gradients:
            gradient.fill_(1.0)
        gradients[-1][-1] = 0.0

    model, step = new_step(recorder := Recorder(from_another_rank), schedule=CosineScheduler(0.1, 0.0, 10))
    before = model.weight.detach().clone()
    update_without_batch(step)
    assert torch.allclose(model.weight, before - 0.1)
    assert recorder.weights == [0]
    assert not any(gradient.any() for gradient in recorder.calls[0][0])
    assert (step.steps, step.updates) == (0, 1)
    assert step.schedule is not None
    assert step.schedule.current_step == 1


def test_an_update_without_a_batch_applies_a_half_full_window():
    _, step = new_step(recorder := Recorder(), accumulate=2)
    step(*batch(4))
    update_without_batch(step)
    assert recorder.weights == [4]
    assert step.is_between_updates


def test_an_update_without_a_batch_needs_other_ranks():
    _, step = new_step(None)
    with pytest.raises(StepError, match="Call the step with a batch"):
        update_without_batch(step)


def test_dropping_a_ragged_batch_is_refused():
    with pytest.raises(StepError, match="the others would wait for its gradients"):
        new_step(Recorder(), tail="drop")


def test_sparse_gradients_are_refused_with_their_path():
    model = nn.Sequential(nn.Embedding(5, 2, sparse=True))
    recorder = Recorder()
    _, step = new_step(recorder, model=model, step_fn=lambda m, x: m(x).square().mean())
    with pytest.raises(StepError, match=r"at '0.weight': this parameter has a sparse gradient"):
        step(torch.tensor([1, 2]))
    assert not recorder.calls
