"""A batch counts once it was trained on, not when it was returned."""

import pytest
import torch
from torch import nn

from flodl import Loader
from flodl.core import DataError
from flodl.engine.tiers.controller import TierController


def failing_at(call, error=ValueError):
    """Return a step function that fails once, at a call counted from 1."""
    calls = []

    def step_fn(model, x, y):
        calls.append(True)
        if len(calls) == call:
            raise error("mine")
        return nn.functional.mse_loss(model(x), y)

    return step_fn


def fit_twice(trainer, data, error, **settings):
    with pytest.raises(error):
        trainer.fit(data, epochs=2, **settings)
    return trainer.fit(data, epochs=2, **settings)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("call", [1, 2, 5, 6, 10])
def test_after_an_error_the_next_fit_continues_with_the_batch_that_was_not_trained_on(
    make, data, call, accumulate, error
):
    whole = make(accumulate=accumulate)
    expected = whole.fit(data, epochs=2, batch_size=4)
    # The dry pass undoes the count of the calls, so the first call would fail again.
    trainer = make(step_fn=failing_at(call, error), accumulate=accumulate, dry_pass=False)
    result = fit_twice(trainer, data, error, batch_size=4)
    assert (result.history, result.steps) == (expected.history, expected.steps)
    assert torch.equal(trainer.model[0].weight, whole.model[0].weight)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_a_batch_counts_if_the_interrupt_arrives_after_its_update(
    make, data, monkeypatch, window, accumulate
):
    whole = make(accumulate=accumulate)
    expected = whole.fit(data, epochs=2, batch_size=4)
    trainer, ended, real = make(accumulate=accumulate), [], TierController.end_window

    def interrupted(controller, step):
        ended.append(True)
        if len(ended) == window:
            raise KeyboardInterrupt
        real(controller, step)

    monkeypatch.setattr(TierController, "end_window", interrupted)
    result = fit_twice(trainer, data, KeyboardInterrupt, batch_size=4)
    assert (result.history, result.steps) == (expected.history, expected.steps)
    assert torch.equal(trainer.model[0].weight, whole.model[0].weight)


def test_an_abandoned_window_starts_again(make, data):
    def trained(call):
        """Train with a backward that fails once and loses the gradients of the window so far."""
        trainer, calls = make(accumulate=3), []

        def fail_once(grad):
            calls.append(True)
            if len(calls) == call:
                raise ValueError("mine")

        trainer.model[3].bias.register_hook(fail_once)
        if call is None:
            trainer.fit(data, epochs=2, batch_size=4)
        else:
            fit_twice(trainer, data, ValueError, batch_size=4)
        return trainer

    whole, disturbed = trained(None), trained(3)
    assert whole.updates == disturbed.updates
    assert torch.equal(disturbed.model[0].weight, whole.model[0].weight)


class Numbers(torch.utils.data.IterableDataset):
    def __init__(self, data):
        self.rows = list(zip(*data))

    def __iter__(self):
        return iter(self.rows)


class NumbersWithState(Numbers):
    """An iterable that knows its position."""

    def __init__(self, data):
        super().__init__(data)
        self.at = 0

    def __iter__(self):
        while self.at < len(self.rows):
            self.at += 1
            yield self.rows[self.at - 1]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("kind", [Numbers, NumbersWithState])
@pytest.mark.parametrize("call", [1, 3, 5])
def test_an_iterable_returns_the_batch_again_too(make, data, kind, call):
    expected = make().fit(Loader(kind(data), 4), epochs=2)
    result = fit_twice(make(step_fn=failing_at(call)), Loader(kind(data), 4), ValueError)
    assert (result.history, result.steps) == (expected.history, expected.steps)


def test_an_iterator_cannot_be_rewound(make, data):
    trainer, loader = make(step_fn=failing_at(3)), Loader(iter(list(zip(*data))), 4)
    with pytest.raises(ValueError, match="mine"):
        trainer.fit(loader, epochs=1)
    with pytest.raises(DataError, match="an iterator, which cannot continue after its loop was left"):
        trainer.fit(loader, epochs=1)


def test_a_batch_that_was_read_but_not_trained_on_comes_again(make, data):
    trainer = make()
    first = next(iter(trainer.epoch(data, batch_size=8)))[0].tolist()
    rest = []
    for batch in trainer.epoch(data, batch_size=8):
        rest.append(batch[0].tolist())
        trainer.step(batch)
    assert len(rest) == 3
    assert rest[0] == first


def test_a_batch_that_the_loop_skips_does_not_come_again(make, data):
    trainer, seen = make(), []
    for batch in trainer.epoch(data, batch_size=4):
        seen.append(batch[0].tolist())
        if len(seen) != 2:
            trainer.step(batch)
        if len(seen) == 3:
            break
    seen += [batch[0].tolist() for batch in trainer.epoch(data, batch_size=4)]
    assert len(seen) == 5


def test_a_loader_that_the_user_moved_keeps_its_position(make, data):
    trainer, loader = make(step_fn=failing_at(3)), Loader(data, 4)
    with pytest.raises(ValueError, match="mine"):
        trainer.fit(loader, epochs=1)
    loader.set_epoch(0)
    assert trainer.fit(loader, epochs=1).steps == 2 + 5


def test_a_save_before_the_step_is_at_the_previous_batch(make, data, tmp_path):
    whole = make().fit(data, epochs=1, batch_size=4)
    trainer = make(checkpoint_dir=tmp_path)
    for number, batch in enumerate(trainer.epoch(data, batch_size=4)):
        if number == 2:
            trainer.save()
            break
        trainer.step(batch)
    result = make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=4)
    assert (result.history, result.steps) == (whole.history, whole.steps)


def test_a_sample_count_belongs_to_the_last_batch_whole_or_in_parts(make):
    cursor, pairs = make()._run.cursor, [(torch.zeros(5, 2), 1.0)] * 6
    for x, y in cursor.batches(Loader(pairs, batch_size=6)):
        assert cursor.num_samples_of((x, y)) == 6
        assert cursor.num_samples_of([x, y]) == 6
        assert cursor.num_samples_of((x[:3], y[:3])) is None
        assert cursor.num_samples_of(x) is None
    for batch in cursor.batches(Loader({"x": torch.zeros(6, 2)}, batch_size=4)):
        assert cursor.num_samples_of(batch) == len(batch["x"])
        assert cursor.num_samples_of(dict(batch)) == len(batch["x"])
        assert cursor.num_samples_of({"x": batch["x"].clone()}) is None
