"""A resumed run names what its hooks have counted and no save contains."""

import time

import pytest
import torch
from torch import nn

from flodl.train import EarlyStopping

WORDS = "and no save contains"


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


@pytest.fixture
def resumed(make, data, tmp_path, capsys):
    """Return a function that trains two epochs, resumes the run for a third, and returns the messages."""

    def run(make_hook):
        for epochs in (2, 3):
            torch.manual_seed(0)
            trainer = make(nn.Linear(3, 1), loss_of, checkpoint_dir=tmp_path / "run", hooks=[make_hook()])
            capsys.readouterr()
            trainer.fit(data, epochs=epochs, batch_size=5)
            told = "".join(capsys.readouterr())
            assert epochs == 3 or WORDS not in told
        return told

    return run


class Patience:
    def __init__(self):
        self.best, self.bad = 9.0, 0
        self.history = []

    def on_epoch_end(self, epoch):
        self.history.append(epoch)
        if epoch < self.best:
            self.best, self.bad = epoch, 0
        else:
            self.bad += 1


class Saved(Patience):
    def state_dict(self):
        return {"best": self.best, "bad": self.bad}

    def load_state_dict(self, state):
        self.best, self.bad = state["best"], state["bad"]


class Resumed(Patience):
    def on_resume(self, epoch):
        self.best, self.bad = 0, epoch - 1


class Logger:
    """Keeps lists, the last loss, a sum of each epoch and times."""

    def __init__(self):
        self.losses, self.last, self.since = [], 0.0, time.perf_counter()

    def on_epoch_start(self):
        self.total = 0.0

    def on_step_end(self, loss):
        self.losses.append(float(loss))
        self.last = float(loss)
        self.total += float(loss)

    def on_epoch_end(self):
        now = time.perf_counter()
        print(self.last, self.total, now - self.since)
        self.since = now


class Counting(EarlyStopping):
    calls = 0

    def on_epoch_end(self, trainer, metrics):
        self.calls += 1
        super().on_epoch_end(trainer=trainer, metrics=metrics)


def test_counters_of_a_hook_are_named_with_both_values(resumed):
    assert (
        "the hook Patience has changed the attributes 'bad' and 'best', and no save contains them: "
        "'bad' is now 0, was 1, 'best' is now 9.0, was 0. Give it state_dict() and load_state_dict()"
    ) in resumed(Patience)


@pytest.mark.parametrize("kind", [Saved, Resumed, Logger])
def test_hooks_that_restore_what_they_count_or_only_log_are_not_named(resumed, kind):
    assert WORDS not in resumed(kind)


def test_a_nonlocal_counter_is_named(resumed):
    def make_hook():
        bad = 0

        def on_epoch_end():
            nonlocal bad
            bad += 1

        return on_epoch_end

    assert "the hook on_epoch_end has changed the variable 'bad', and no save contains it" in resumed(
        make_hook
    )


def test_a_counter_in_a_subclass_of_a_hook_of_flodl_is_named(resumed):
    told = resumed(lambda: Counting("loss", patience=5))
    assert "the hook Counting has changed the attribute 'calls'" in told
    assert told.count(WORDS) == 1


def test_the_same_hook_in_another_trainer_has_lost_nothing(resumed):
    hook = Patience()
    assert WORDS not in resumed(lambda: hook)
