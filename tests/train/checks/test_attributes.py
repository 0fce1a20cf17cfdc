"""Attributes of a trainer that would have no effect, or do not exist."""

import pytest
import torch
from torch import nn

from flodl import Monitor, Trainer
from flodl.core import MonitorError, StepError, TrainError
from flodl.train import EarlyStopping


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lr", r"trainer.lr was assigned, .* trainer.scale_lr\(factor\)"),
        ("max_epochs", r"trainer.max_epochs was assigned, .* trainer.fit\(data, epochs=…\)"),
        ("clipnorm", "trainer.clipnorm was assigned, .* Did you mean 'clip_norm'"),
        ("epochs", "trainer.epochs was assigned, but it is read-only: The number of completed epochs"),
        ("history", "trainer.history was assigned, but it is read-only"),
        ("should_stop", r"trainer.should_stop was assigned, .* Call trainer.stop\('reason'\)"),
        ("stop_training", r"trainer.stop_training was assigned, .* Call trainer.stop\('reason'\)"),
        ("stop", r"trainer.stop was assigned, but it is a method. Call trainer.stop\('reason'\)"),
        ("evaluate", r"trainer.evaluate was assigned, but it is a method. Call it: trainer.evaluate\(…\)"),
        ("best_acc", "trainer.best_acc was assigned, .* no such attribute: this has no effect. Keep a value"),
    ],
)
def test_an_assignment_without_effect_is_an_error_with_the_right_way(make, name, message):
    trainer = make()
    with pytest.raises(TrainError, match=message):
        setattr(trainer, name, 1)


def test_a_subclass_has_attributes_of_its_own(data):
    class Mine(Trainer):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            self.lr = 3

    trainer = Mine(
        nn.Linear(3, 1),
        lambda model, x, y: (model(x) - y).square().mean(),
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
        device="cpu",
        monitor=False,
    )
    assert trainer.lr == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hooks", r"a Trainer has no attribute 'hooks'. Hooks are passed to Trainer\(hooks="),
        ("lr", r"a Trainer has no attribute 'lr'. The rate is trainer.optimizer.param_groups\[0\]\['lr'\]"),
        ("load", r"no attribute 'load'. A run continues with fit\(…, resume='auto'\).* load_checkpoint"),
        ("predict", r"trainer\.model\.eval\(\), then `with torch\.no_grad\(\): trainer\.model\(x\)`"),
        ("evalute", "a Trainer has no attribute 'evalute'. Did you mean 'evaluate'"),
    ],
)
def test_an_attribute_that_does_not_exist_is_an_error_with_the_place_of_the_value(make, name, message):
    trainer = make()
    with pytest.raises(TrainError, match=message):
        getattr(trainer, name)
    assert not hasattr(trainer, name)
    assert getattr(trainer, name, None) is None


@pytest.mark.parametrize("name", ["patience", "tol", "mode", "min_delta"])
def test_a_setting_of_a_callback_that_is_assigned_is_refused(name):
    with pytest.raises(TrainError, match=rf"{name} of EarlyStopping\('loss', patience=2.* would be ignored"):
        setattr(EarlyStopping("loss", patience=2), name, 5)


@pytest.mark.parametrize("name", ["log", "history", "step_rate", "console"])
def test_an_assignment_to_a_monitor_that_has_no_effect_is_refused(name, tmp_path):
    with Monitor(1, tmp_path, console=False) as monitor:
        with pytest.raises(MonitorError, match=f"monitor.{name} was assigned, but"):
            setattr(monitor, name, 1)
        monitor.total_epochs = 3


@pytest.mark.parametrize("name", ["flush", "means"])
def test_a_method_of_a_step_is_not_replaced_by_a_value(make, name):
    with pytest.raises(
        StepError, match=rf"step.{name} was assigned, but it is a method. Call it: step.{name}"
    ):
        setattr(make().train_step, name, True)
