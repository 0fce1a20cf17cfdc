"""A wrong call of a trainer says how to write it."""

import pytest

from flodl import Trainer
from flodl.core import TrainError
from flodl.train import EarlyStopping, Phase, ReduceOnPlateau

WRONG = [
    ({"epoch": 3}, "fit has no argument 'epoch'. Did you mean 'epochs'"),
    ({"epochs": 1, "batchsize": 5}, "fit has no argument 'batchsize'. Did you mean 'batch_size'?"),
    ({"epochs": 1, "validation_data": 5}, "fit has no argument 'validation_data'. Write eval_data="),
    ({"epochs": 1, "lr": 5}, "fit has no argument 'lr'. The learning rate belongs to the optimizer"),
    ({}, "fit needs 'epochs'. Write trainer.fit"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_a_wrong_argument_of_fit_is_an_error_with_the_right_one(make, data, arguments, message):
    with pytest.raises(TrainError, match=message) as caught:
        make().fit(data, **arguments)
    assert isinstance(caught.value, TypeError)


def test_inputs_and_targets_as_two_arguments_of_fit_are_an_error(make, data):
    with pytest.raises(
        TrainError, match=r"fit got Tensor, Tensor by position, .* Write trainer.fit\(\(x, y\), epochs=10"
    ):
        make().fit(*data, epochs=1)


@pytest.mark.parametrize("method", ["evaluate", "epoch"])
def test_targets_in_place_of_a_batch_size_are_an_error(make, data, method):
    with pytest.raises(TrainError, match=r"batch_size is a Tensor. .* as one dataset: \(x, y\)"):
        list(getattr(make(), method)(*data))


def test_a_batch_size_that_is_a_string_is_an_error(make, data):
    with pytest.raises(
        TrainError, match=r"batch_size='64' is a string. Pass an integer, such as batch_size=32"
    ):
        make().fit(data, epochs=1, batch_size="64")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("optimiser", "Trainer has no argument 'optimiser'. Did you mean 'optimizer'"),
        ("max_epochs", r"Trainer has no argument 'max_epochs'. Write trainer.fit\(data, epochs=…\)"),
        ("callbacks", r"Trainer has no argument 'callbacks'. Write Trainer\(…, hooks="),
        ("compile", "Trainer has no argument 'compile'. Choose a tier"),
        ("shedule", "Trainer has no argument 'shedule'. Did you mean 'schedule'"),
    ],
)
def test_a_wrong_argument_of_a_trainer_is_an_error_with_the_right_one(make, name, message):
    with pytest.raises(TrainError, match=message):
        make(**{name: None})


def test_a_trainer_without_an_optimizer_is_an_error(make):
    trainer = make()
    with pytest.raises(TrainError, match=r"Trainer needs 'optimizer'. Write Trainer"):
        Trainer(trainer.model, trainer.step_fn)


def test_a_type_error_of_the_step_function_is_not_taken_for_a_wrong_call(make, data):
    def broken(model, x, y):
        return model(x) + "1"

    with pytest.raises(TypeError) as caught:
        make(step_fn=broken).fit(data, epochs=1, batch_size=8)
    assert not isinstance(caught.value, TrainError)


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (
            lambda: EarlyStopping(monitor="eval_loss"),
            "EarlyStopping has no argument 'monitor'. Pass the name",
        ),
        (
            lambda: EarlyStopping("eval_loss", min_delta=0.1),
            "EarlyStopping has no argument 'min_delta'. Write tol=",
        ),
        (
            lambda: EarlyStopping("eval_loss", 3),
            r"takes only metric that way.*Write EarlyStopping\('eval_loss', pa",
        ),
        (
            lambda: ReduceOnPlateau("loss", min_lr=1e-5),
            "ReduceOnPlateau has no argument 'min_lr'. Write least=",
        ),
        (lambda: Phase(), r"Phase needs 'epoch'. Write Phase\(3, thaw="),
    ],
)
def test_a_wrong_argument_of_a_callback_is_an_error_with_the_right_one(create, message):
    with pytest.raises(TrainError, match=message):
        create()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda trainer: trainer.save("x.fdl"),
            r"save got str, and takes nothing by position.*save_checkpoint\('model.fdl'",
        ),
        (lambda trainer: trainer.scale_lr(), r"scale_lr needs 'factor'. Write trainer.scale_lr\(0.1\)"),
        (lambda trainer: trainer.evaluate(), r"evaluate needs 'data'. Write trainer.evaluate\(\(x, y\)\)"),
        (lambda trainer: trainer.epoch(), "epoch needs 'data'. Write for batch in trainer.epoch"),
    ],
)
def test_a_wrong_call_of_a_method_of_a_trainer_is_an_error_with_the_right_one(make, call, message):
    with pytest.raises(TrainError, match=message):
        call(make())


def test_running_and_resume_name_the_argument_that_is_missing(make):
    trainer = make()
    with pytest.raises(TrainError, match=r"running needs 'epochs'. Write with trainer.running\(epochs=10\)"):
        trainer.running()
    with pytest.raises(TrainError, match=r"resume needs 'data'. Write trainer.resume\(\(x, y\), 32\)"):
        trainer.resume()


def test_a_resume_without_a_folder_is_noted_once(make, data, capsys):
    trainer = make()
    assert not trainer.resume(data, 8)
    assert not trainer.resume(data, 8)
    assert capsys.readouterr().out.count("has nothing to resume: the trainer has no checkpoint_dir") == 1
    with pytest.raises(TrainError, match="needs a checkpoint_dir"):
        trainer.resume(data, 8, how="must")


def test_the_same_hook_twice_is_refused(make):
    stopping = EarlyStopping("loss", patience=4)
    with pytest.raises(
        TrainError, match=r"hooks\[0\] and hooks\[2\] are the same EarlyStopping, which would"
    ):
        make(hooks=[stopping, Phase(0), stopping])
    make(hooks=[stopping, EarlyStopping("loss", patience=4)])
