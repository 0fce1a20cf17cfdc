"""A mistake of the user shows the user's frames at every public call of a trainer."""

import traceback

import pytest
import torch
from torch import nn

from flodl import Loader, Trainer
from flodl.core import TrainError

X, Y = torch.ones(8, 4), torch.ones(8, 2)


def mean(model, x, y):
    return (model(x) - y).square().mean()


def fails(*arguments, **named):
    raise KeyError("label")


def trainer(step_fn=mean, **options):
    return Trainer(
        nn.Linear(4, 2),
        step_fn,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
        device="cpu",
        monitor=False,
        **options,
    )


def frames(function, *arguments, **named):
    with pytest.raises(Exception) as found:
        function(*arguments, **named)
    return names_in(found.value)


def names_in(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def loop(one, **options):
    for batch in one.epoch((X, Y), 4, **options):
        one.step(batch)


def step_fails(model, x, y):
    raise KeyError("label")


class Fails:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return fails()


class Hook:
    def __init__(self, name):
        setattr(self, name, fails)


def test_an_error_of_the_step_function():
    assert frames(trainer(step_fails).fit, (X, Y), epochs=1, batch_size=4) == ["frames", "step_fails"]
    assert frames(loop, trainer(step_fails, dry_pass=False)) == ["frames", "loop", "step_fails"]
    assert frames(trainer(step_fails).step, (X, Y)) == ["frames", "step_fails"]
    assert frames(trainer(step_fails).evaluate, (X, Y)) == ["frames", "step_fails"]
    assert frames(trainer(step_fails).find_lr, (X, Y), 4) == ["frames", "step_fails"]


def test_an_flodl_error_about_the_step_function():
    def per_sample(model, x, y):
        return (model(x) - y).square().mean(1)

    assert frames(trainer(per_sample).fit, (X, Y), epochs=1, batch_size=4) == ["frames"]
    assert frames(trainer(per_sample).step, (X, Y)) == ["frames"]
    assert frames(loop, trainer(per_sample, dry_pass=False)) == ["frames", "loop"]


def test_an_error_of_the_dataset():
    assert frames(trainer().fit, Fails(), epochs=1, batch_size=4) == ["frames", "__getitem__", "fails"]
    loader = Loader(Fails(), 4)
    assert frames(trainer().fit, loader, epochs=1) == ["frames", "__getitem__", "fails"]


@pytest.mark.parametrize("name", ["on_epoch_start", "on_epoch_end", "on_step_end"])
def test_an_error_of_a_hook(name):
    one = trainer(hooks=[Hook(name)])
    assert frames(one.fit, (X, Y), epochs=1, batch_size=4) == ["frames", "fails"]


class Metric:
    def reset(self):
        pass

    def update(self, predictions, targets):
        fails()

    def compute(self):
        return 0.0


def test_an_error_of_a_metric():
    one = trainer(metrics={"accuracy": Metric()}, outputs=lambda model, x, y: (model(x), y), dry_pass=False)
    with pytest.raises(TrainError, match="accuracy") as found:
        one.evaluate((X, Y))
    assert names_in(found.value) == ["test_an_error_of_a_metric"]
    assert names_in(found.value.__cause__) == ["update", "fails"]
    assert frames(loop, one, eval_data=(X, Y)) == ["frames", "loop"]


def test_errors_of_flodl_about_arguments():
    assert frames(trainer, clip_norm=-1.0) == ["frames", "trainer"]
    assert frames(trainer().fit, (X, Y), epochs=1, batch_size=0) == ["frames"]
    assert frames(trainer().fit, (X, Y), epoch=1) == ["frames"]
    assert frames(trainer().find_lr, (X, Y), 4, min_lr=2.0) == ["frames"]
    assert frames(trainer().loader, (X, Y), 0) == ["frames"]
    assert frames(loop, trainer(), limit=-1) == ["frames", "loop"]
    assert frames(trainer().save) == ["frames"]
