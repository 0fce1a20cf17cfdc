"""A forward pass in a sandbox leaves no trace, or is not run."""

import dataclasses
import importlib
import itertools
import queue
from array import array
from collections import deque

import pytest
import torch
from torch import nn

from flodl import TrainStep
from flodl.core import StepError
from flodl.engine import NotRestorable, rehearse, sandbox
from flodl.engine.state import sandbox as module


def step_of(model, step_fn, **settings):
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, **settings)


def run(step, *batch, reached=()):
    with sandbox(step, batch, *reached):
        return rehearse(step, batch)


def test_gradients_of_the_user_and_random_numbers_are_left():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    model[0].weight.grad = before = torch.ones(2, 2)

    def step_fn(model, x):
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        return loss

    torch.manual_seed(0)
    run(step_of(model, step_fn), torch.ones(3, 2))
    assert model[0].weight.grad is before
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    run(step_of(model, lambda model, x: model(x).sum()), torch.ones(3, 2))
    assert torch.equal(torch.rand(3), expected)


def test_forward_hooks_of_the_user_are_left_as_they_were():
    model, seen = nn.Linear(2, 1), []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output))
    run(step_of(model, lambda model, x: model(x).sum()), torch.ones(3, 2))
    assert seen == []


def test_a_batch_that_the_step_changes_in_place_is_restored_whatever_its_size():
    large, small = torch.ones(600_000, 2), torch.ones(3, 2)
    step = step_of(nn.Linear(2, 1), lambda model, x, y: model(x.mul_(2)).sum() + y.zero_().sum())
    run(step, large, small)
    assert large.sum() == large.numel()
    assert small.sum() == small.numel()


def test_everything_is_restored_after_an_error():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    def step_fn(model, x):
        model(x)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(step_of(model, step_fn), torch.ones(3, 2))
    assert model[1].num_batches_tracked == 0


def test_what_is_too_large_to_copy_must_not_be_written_to(monkeypatch):
    monkeypatch.setattr(module, "MAX_OUTSIDE_BYTES", 100)
    bank, read = torch.zeros(1000), torch.zeros(1000)
    step = step_of(nn.Linear(2, 1), lambda model, x: model(x).sum() + read.sum())
    run(step, torch.ones(3, 2))
    step = step_of(nn.Linear(2, 1), lambda model, x: model(x).sum() + bank.add_(1).sum())
    with pytest.raises(StepError, match=r"writes to a tensor of shape \(1000,\) that is too large"):
        run(step, torch.ones(3, 2))


def test_what_cannot_be_restored_is_refused_before_it_runs(monkeypatch):
    numbers = iter(range(9))
    step = step_of(nn.Linear(2, 1), lambda model, x: model(x).sum() * next(numbers))
    with pytest.raises(NotRestorable, match="may read from an iterator"):
        run(step, torch.ones(3, 2))
    assert next(numbers) == 0
    monkeypatch.setattr(module, "MAX_OBJECTS", 3)
    with pytest.raises(NotRestorable, match="it reaches more than 3 objects"):
        run(step, torch.ones(3, 2))


def test_a_padded_step_is_rehearsed_with_its_mask():
    def step_fn(model, x, mask):
        return (model(x).square().mean(1) * mask).sum() / mask.sum()

    step = step_of(nn.Linear(2, 1), step_fn, tail="pad")
    loss, values = run(step, torch.ones(3, 2))
    assert loss.requires_grad
    assert values == {}
    assert step.steps == 0


class OfClass:
    count = 0


@dataclasses.dataclass(slots=True)
class InSlots:
    count: int = 0
    late: int = dataclasses.field(init=False)


def in_attribute_of_function(model, x):
    in_attribute_of_function.count = getattr(in_attribute_of_function, "count", 0) + 1
    return model(x).sum() * in_attribute_of_function.count


def test_counters_of_classes_functions_and_slots_are_restored():
    slots, derived = InSlots(), type("Derived", (OfClass,), {})()

    def step_fn(model, x):
        OfClass.count += 1
        type(derived).own = OfClass.count
        slots.count += 1
        slots.late = slots.count
        return in_attribute_of_function(model, x) * slots.late

    run(step_of(nn.Linear(2, 1), step_fn), torch.ones(3, 2))
    assert (OfClass.count, slots.count) == (0, 0)
    assert not hasattr(slots, "late")
    assert not hasattr(type(derived), "own")
    assert not hasattr(in_attribute_of_function, "count")


def test_bytes_and_queues_are_restored():
    data, numbers, waiting = bytearray(2), array("i", [1, 2]), queue.Queue()
    recent = deque([1, 2], maxlen=2)
    waiting.put("first")

    def step_fn(model, x):
        data.append(1)
        numbers[0] += 1
        recent.append(waiting.get())
        return model(x).sum()

    run(step_of(nn.Linear(2, 1), step_fn), torch.ones(3, 2))
    assert (data, numbers.tolist(), list(recent)) == (bytearray(2), [1, 2], [1, 2])
    assert (waiting.get_nowait(), waiting.unfinished_tasks) == ("first", 1)


def test_a_queue_that_cannot_be_looked_into_is_refused():
    waiting = queue.SimpleQueue()
    with pytest.raises(NotRestorable, match="SimpleQueue"):
        run(step_of(nn.Linear(2, 1), lambda model, x: model(x).sum() + waiting.qsize()), torch.ones(3, 2))


def test_variables_of_another_module_are_restored(tmp_path, monkeypatch):
    (tmp_path / "annealing_of_a_test.py").write_text(
        "step = 0\nscale = 1\n\ndef factor():\n    global step\n    step += 1\n    return step * scale\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    annealing = importlib.import_module("annealing_of_a_test")

    def step_fn(model, x):
        annealing.scale += 1
        return model(x).sum() * annealing.factor()

    run(step_of(nn.Linear(2, 1), step_fn), torch.ones(3, 2))
    assert (annealing.step, annealing.scale) == (0, 1)


def test_a_class_that_numbers_its_objects_does_not_prevent_a_dry_pass():
    class Numbered(nn.Linear):
        numbers = itertools.count()

    run(step_of(Numbered(2, 1), lambda model, x: model(x).sum()), torch.ones(3, 2))
    assert next(Numbered.numbers) == 0
    with pytest.raises(NotRestorable, match="count"):
        run(
            step_of(Numbered(2, 1), lambda model, x: model(x).sum() * next(Numbered.numbers)),
            torch.ones(3, 2),
        )
