"""Tensors that a step function updates outside the model are in no save, which is reported."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from .conftest import small_model

MESSAGE = "which belongs to neither the model nor the optimizer and is in no save"


@pytest.fixture
def fit(make, data, tmp_path, capsys):
    """Return a function that trains for an epoch and returns the warnings."""

    def run(step_fn, *, model=None, saves=True, **settings):
        folder = {"checkpoint_dir": tmp_path / "run"} if saves else {}
        make(model, step_fn, **folder, **settings).fit(data, epochs=1, batch_size=5)
        return capsys.readouterr().err

    return run


def mean_teacher(tgt):
    def step_fn(model, x, y):
        loss = nn.functional.mse_loss(model(x), y)
        with torch.no_grad():
            loss_of_teacher = nn.functional.mse_loss(model(x), tgt(x))
            for slow, fast in zip(tgt.parameters(), model.parameters()):
                slow.lerp_(fast, 0.1)
        return loss + loss_of_teacher

    return step_fn


def test_a_teacher_that_the_step_function_updates_is_reported_once(fit):
    err = fit(mean_teacher(small_model()))
    assert err.count(MESSAGE) == 1
    assert "the step function updates 'tgt', " in err


def test_a_copy_of_the_model_as_teacher_is_reported(fit):
    model = small_model()
    assert "the step function updates 'tgt', " in fit(mean_teacher(copy.deepcopy(model)), model=model)


def test_a_running_mean_that_the_loss_uses_is_reported(fit):
    center = torch.zeros(1)

    def step_fn(model, x, y):
        loss = nn.functional.mse_loss(model(x), y - center)
        center.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return loss

    assert "the step function updates 'center', " in fit(step_fn)


def test_a_sum_that_is_only_reported_is_not_mentioned(fit):
    total = torch.zeros(())

    def step_fn(model, x, y):
        loss = nn.functional.mse_loss(model(x), y)
        total.add_(loss.detach())
        return loss

    assert MESSAGE not in fit(step_fn)


def test_without_saves_nothing_is_reported(fit):
    assert fit(mean_teacher(small_model()), saves=False) == ""


class WithTeacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = small_model(), small_model().requires_grad_(False)

    def forward(self, x):
        return self.student(x)


def test_a_teacher_inside_the_model_is_not_reported(fit):
    model = WithTeacher()

    def step_fn(model, x, y):
        with torch.no_grad():
            for slow, fast in zip(model.teacher.parameters(), model.student.parameters()):
                slow.lerp_(fast, 0.1)
        return nn.functional.mse_loss(model(x), y)

    assert MESSAGE not in fit(step_fn, model=model)


class Teacher:
    def __init__(self, tgt):
        self.tgt = tgt

    def on_epoch_end(self):
        pass

    def state_dict(self):
        return {name: value.clone() for name, value in self.tgt.state_dict().items()}

    def load_state_dict(self, state):
        self.tgt.load_state_dict(state)


def test_a_teacher_that_a_hook_saves_is_not_reported(fit):
    tgt = small_model()
    assert MESSAGE not in fit(mean_teacher(tgt), hooks=[Teacher(tgt)])


def test_counters_caches_and_memory_that_is_overwritten_are_not_reported(fit):
    noise, calls, cache, seen = torch.zeros(5, 3), [0], {}, torch.zeros((), dtype=torch.int64)
    frozen = small_model()

    def step_fn(model, x, y):
        calls[0] += 1
        seen.add_(1)
        noise.normal_()
        cache["last"] = model(x + 0.01 * noise)
        return nn.functional.mse_loss(cache["last"], y) + nn.functional.mse_loss(cache["last"], frozen(x))

    assert MESSAGE not in fit(step_fn)


@pytest.mark.parametrize("kind", ["python", "numpy", "torch"])
def test_a_generator_that_the_step_function_draws_from_is_reported(fit, kind):
    if kind == "torch":
        rng = torch.Generator().manual_seed(0)
    else:
        rng = random.Random(0) if kind == "python" else np.random.default_rng(0)

    def step_fn(model, x, y):
        drawn = torch.rand((), generator=rng) if kind == "torch" else float(rng.random())
        return nn.functional.mse_loss(model(x), y) * (1 + drawn)

    message = "the step function draws from 'rng', a generator of its own, whose state is in no save"
    assert fit(step_fn).count(message) == 1


def test_generators_that_are_saved_or_unused_are_not_reported(fit):
    unused = random.Random(0)

    def step_fn(model, x, y):
        assert unused is not None
        return nn.functional.mse_loss(model(x), y) * (1 + random.random() + torch.rand(()))

    assert "draws from" not in fit(step_fn)
