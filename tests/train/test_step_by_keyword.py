"""`trainer.step` takes a batch by keyword, as `TrainStep` does, with the same numbers."""

import pytest
import torch
from torch import nn

from flodl import Loader, TrainStep
from flodl.core import StepError


class KeepBatches:
    """Keeps what `on_step_end` is called with."""

    def __init__(self):
        self.batches = []

    def on_step_end(self, batch):
        self.batches.append(batch)


def by_position(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def by_name(model, **batch):
    return nn.functional.mse_loss(model(batch["x"]), batch["y"])


def by_name_only(model, *, x, y):
    return nn.functional.mse_loss(model(x), y)


def losses_of(trainer, data, take_step):
    return [take_step(trainer, batch).item() for _ in range(2) for batch in trainer.epoch(data, 8)]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("step_fn", [by_position, by_name, by_name_only])
def test_a_dict_by_keyword_trains_as_the_train_step_does(make, data, step_fn, accumulate):
    named = dict(zip("xy", data))
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    found = losses_of(
        make(model, step_fn, accumulate=accumulate), named, lambda trainer, batch: trainer.step(**batch)
    )
    model.load_state_dict(start)
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        step_fn,
        tier="eager",
        guard="gradients",
        accumulate=accumulate,
    )
    loader = Loader(named, 8)
    expected = [step(**batch).item() for _ in range(2) for batch in loader]
    # A trainer completes the window at the end of an epoch, so only the first epoch is the same.
    count = len(expected) if accumulate == 1 else len(expected) // 2
    assert found[:count] == expected[:count]


@pytest.mark.parametrize(
    "take_step",
    [
        lambda trainer, batch: trainer.step(x=batch[0], y=batch[1]),
        lambda trainer, batch: trainer.step(y=batch[1], x=batch[0]),
        lambda trainer, batch: trainer.step(batch[0], y=batch[1]),
    ],
)
def test_parts_by_keyword_are_those_of_the_step_function(make, data, take_step):
    expected = losses_of(make(), data, lambda trainer, batch: trainer.step(batch))
    assert losses_of(make(), data, take_step) == expected


def test_hooks_get_the_batch_of_the_loader(make, data):
    kept, seen = KeepBatches(), []
    trainer = make(step_fn=by_name, hooks=[kept])
    for batch in trainer.epoch(dict(zip("xy", data)), 8):
        seen.append(batch)
        trainer.step(**batch)
    assert all(one is other for one, other in zip(kept.batches, seen, strict=True))
    own = {"x": data[0], "y": data[1] + 1}
    trainer.step(**own)
    assert kept.batches[-1] == own


@pytest.mark.parametrize("take_step", [lambda trainer, batch: trainer.step(**batch), None])
def test_the_number_of_samples_is_that_of_the_loader(make, take_step):
    # Time comes first: only the loader knows how many samples a batch has.
    samples = [{"x": torch.randn(5, 3)} for _ in range(6)]

    def collate(rows):
        return {"x": torch.stack([row["x"] for row in rows], 1)}

    def losses(take_step):
        trainer = make(step_fn=lambda model, **batch: model(batch["x"]).square().mean(), accumulate=2)
        loader = Loader(samples, 4, seed=0, collate=collate)
        for _ in range(2):
            for batch in trainer.epoch(loader):
                take_step(trainer, batch)
        return [row["loss"] for row in trainer.history]

    torch.manual_seed(0)
    assert losses(take_step or (lambda trainer, batch: trainer.step(x=batch["x"]))) == losses(
        lambda trainer, batch: trainer.step(batch)
    )


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ((), {"x": 0, "z": 1}, r"There is no parameter 'z': the step function takes \(model, x, y\)"),
        ((), {"x": 0}, "'y' is missing"),
        ((0,), {"x": 0, "y": 1}, "'x' is also passed by position"),
    ],
)
def test_names_that_the_step_function_does_not_have_are_explained(make, arguments, named, message):
    trainer = make()
    with pytest.raises(StepError, match=message):
        trainer.step(*arguments, **named)
    assert trainer.train_step.steps == 0
