"""A run that continues from the weights which another Trainer left in the same model object says so."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

TOLD = "has already trained this model object"


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


@pytest.fixture
def told(make, data, capfd):
    """Return a function that trains a model with a new trainer, and returns whether the note was printed."""

    def run(model, **settings):
        capfd.readouterr()
        make(model, **{"monitor": None, **settings}).fit(data, epochs=1, batch_size=5)
        printed = capfd.readouterr()
        return TOLD in printed.out + printed.err

    return run


def test_a_second_trainer_of_the_same_model_is_noted(told):
    model = net()
    assert [told(model) for _ in range(3)] == [False, True, True]
    assert not told(model, monitor=False)


def test_the_note_names_the_updates_and_the_remedy(make, data, capfd):
    model = net()
    for _ in range(2):
        make(model, monitor=None).fit(data, epochs=1, batch_size=5)
    printed = capfd.readouterr()
    text = printed.out + printed.err
    assert text.count("for 4 updates: this run continues from those weights, with a new optimizer") == 1
    assert "create a new model for each run" in text


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.load_state_dict(net().state_dict()),
        lambda model: model[0].reset_parameters(),
        lambda model: model[0].weight.data.normal_(),
        lambda model: model[0].requires_grad_(False),
    ],
)
def test_weights_that_were_loaded_or_reset_and_other_trained_parts_are_not_noted(told, change):
    model = net()
    told(model)
    change(model)
    assert not told(model)


def test_a_copy_of_a_trained_model_is_not_noted(told):
    model = net()
    told(model)
    assert not told(copy.deepcopy(model))


def test_a_trainer_that_continues_is_not_noted(make, data, capfd):
    trainer = make(net(), monitor=None)
    for epochs in (1, 2):
        trainer.fit(data, epochs=epochs, batch_size=5)
    printed = capfd.readouterr()
    assert TOLD not in printed.out + printed.err


def test_a_trainer_with_the_same_optimizer_is_not_noted(told):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    told(model, optimizer=optimizer)
    assert not told(model, optimizer=optimizer)


def test_a_run_that_resumes_is_not_noted(told, tmp_path, make, data, capfd):
    model = net()
    told(model, checkpoint_dir=tmp_path)
    make(model, monitor=None, checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=5)
    printed = capfd.readouterr()
    assert TOLD not in printed.out + printed.err


def test_a_model_is_freed_although_its_training_is_remembered(told):
    def trained():
        model = net()
        told(model)
        return weakref.ref(model)

    freed = trained()
    gc.collect()
    assert freed() is None


def adversaries(make, *, monitor):
    """Return trainers of a generator and a critic, whose step functions read the model of the other."""
    generator, critic = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
    first = make(generator, lambda model, x, y: -critic(model(x)).mean(), monitor=monitor)
    second = make(
        critic, lambda model, x, y: model(generator(x).detach()).mean() - model(x).mean(), monitor=monitor
    )
    return first, second


@pytest.mark.parametrize("monitor", [pytest.param(None, marks=pytest.mark.slow), False])
def test_models_that_two_trainers_train_in_turn_are_not_reported(make, data, capfd, monitor):
    trainers = adversaries(make, monitor=monitor)
    for epochs in (1, 2, 3):
        for trainer in trainers:
            trainer.fit(data, epochs=epochs, batch_size=5)
    printed = capfd.readouterr()
    assert "since this trainer trained last" not in printed.out + printed.err


def test_other_weights_that_the_program_changes_are_reported_with_one_number(make, data, capfd):
    teacher = nn.Linear(3, 8).requires_grad_(False)
    trainer = make(step_fn=lambda model, x, y: (model(x) - teacher(x).mean(1, keepdim=True)).square().mean())
    trainer.fit(data, epochs=1, batch_size=5)
    teacher.bias.add_(1)
    trainer.fit(data, epochs=2, batch_size=5)
    reported = capfd.readouterr().err
    assert "since this trainer trained last, step.teacher.bias[0] is now" in reported
    assert "(8 of 8 numbers are different)" in reported
    assert len(reported) < 200
