"""A torch scheduler that a hook steps is part of a save, or the run says that it is not."""

import pytest
import torch
from torch import nn

from flodl.train import EarlyStopping

from ..scheduler_hooks import Saved, Stepping


@pytest.fixture
def parts():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def test_a_scheduler_that_no_save_contains_is_reported(make, data, parts, tmp_path, capsys):
    model, optimizer, scheduler = parts

    def on_step_end():
        scheduler.step()

    for number, hook in enumerate((on_step_end, Stepping(scheduler))):
        make(model, optimizer=optimizer, hooks=[hook], checkpoint_dir=tmp_path / str(number)).fit(
            data, epochs=1, batch_size=8
        )
        assert capsys.readouterr().err.count("steps a StepLR, whose state is in no save") == 1


def test_a_scheduler_that_is_saved_or_only_read_is_not_reported(make, data, parts, tmp_path, capsys):
    model, optimizer, scheduler = parts

    def on_epoch_end():
        print(scheduler.get_last_lr())

    for hooks, settings in (
        ([Saved(scheduler), on_epoch_end], {"checkpoint_dir": tmp_path / "saved"}),
        ([on_epoch_end], {"checkpoint_dir": tmp_path / "read"}),
        ([Stepping(scheduler)], {}),
    ):
        make(model, optimizer=optimizer, hooks=hooks, **settings).fit(data, epochs=1, batch_size=8)
    assert "is in no save" not in capsys.readouterr().err


class Lazy:
    """Creates its scheduler when it is first called, at the position of the run if asked to."""

    def __init__(self, *, continues=False):
        self.scheduler = None
        if continues:
            self.on_step_end = self.continue_at

    def on_step_end(self, trainer):
        if self.scheduler is None:
            self.scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 2)
        else:
            self.scheduler.step()

    def continue_at(self, trainer, step):
        if self.scheduler is None:
            trainer.optimizer.param_groups[0].setdefault("initial_lr", 0.1)
            self.scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 2, last_epoch=step)
        else:
            self.scheduler.step()


class LazyRestored(Lazy):
    def on_resume(self): ...


def test_a_scheduler_that_a_hook_creates_later_is_reported_once_at_the_first_save(
    make, data, tmp_path, capsys
):
    made = None

    def on_epoch_end(trainer):
        nonlocal made
        if made is None:
            made = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 2)
        else:
            made.step()

    for number, hook in enumerate((Lazy(), on_epoch_end)):
        make(hooks=[hook], checkpoint_dir=tmp_path / str(number)).fit(data, epochs=3, batch_size=10)
        assert capsys.readouterr().err.count("steps a StepLR, whose state is in no save") == 1


@pytest.mark.parametrize("hook", [LazyRestored(), Lazy(continues=True)])
def test_a_later_scheduler_that_the_hook_restores_itself_is_not_reported(make, data, tmp_path, capsys, hook):
    make(hooks=[hook], checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=10)
    assert "is in no save" not in capsys.readouterr().err


@pytest.mark.parametrize("steps_it", [False, True])
def test_a_scheduler_that_nothing_steps_is_reported(make, data, capsys, steps_it):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def on_epoch_end():
        scheduler.step()

    hooks = [on_epoch_end] if steps_it else [EarlyStopping("loss", patience=9)]
    trainer = make(model, optimizer=optimizer, hooks=hooks, monitor=None)
    trainer.fit(data, epochs=2, batch_size=10)
    shown = "".join(capsys.readouterr())
    assert ("nothing calls its step() during fit" in shown) is not steps_it


def test_a_loop_may_step_a_scheduler_itself(make, data, capsys):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    trainer = make(model, optimizer=optimizer, monitor=None)
    with trainer.running(2):
        while trainer.epochs < 2:
            for batch in trainer.epoch(data, 10):
                trainer.step(batch)
            scheduler.step()
    assert "scheduler" not in "".join(capsys.readouterr())
