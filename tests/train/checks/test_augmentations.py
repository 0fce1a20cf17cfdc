"""Evaluation data that is augmented differently than the training data."""

import pytest
import torch
from torch import nn

from flodl import Loader
from flodl.data import Compose, Normalize, RandomCrop, RandomFlip, digits

NORMALIZE = Normalize([0.5], [0.1])


def images(count, seed):
    return digits(count, seed=seed)


def classify(model, x, y):
    return nn.functional.cross_entropy(model(x.float()), y)


@pytest.fixture
def warnings_of(make, capsys):
    """Return what a run prints to standard error for a training augmentation and evaluation data."""

    def run(augment, eval_data):
        model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))
        trainer = make(model, classify)
        trainer.fit(Loader(images(100, 0), 50, seed=0, augment=augment), epochs=2, eval_data=eval_data)
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize("augment", [NORMALIZE, [RandomCrop(2), NORMALIZE], Compose(NORMALIZE)], ids=repr)
def test_evaluation_data_without_the_normalization_of_the_training_is_reported_once(warnings_of, augment):
    text = "the training data is normalized by Normalize([0.5], [0.1]), and the evaluation data is not"
    assert warnings_of(augment, images(60, 1)).count(text) == 1
    assert warnings_of(augment, Loader(images(60, 1), 30, shuffle=False)).count(text) == 1


def test_bytes_without_the_normalization_are_reported(warnings_of):
    x, y = images(60, 1)
    assert "and the evaluation data is not" in warnings_of(NORMALIZE, ((x * 255).to(torch.uint8), y))


def test_evaluation_data_that_is_normalized_anywhere_is_not_reported(warnings_of):
    x, y = images(60, 1)
    assert warnings_of(NORMALIZE, ((x - 0.5) / 0.1, y)) == ""
    assert warnings_of(NORMALIZE, Loader((x, y), 30, augment=NORMALIZE)) == ""
    assert warnings_of(NORMALIZE, Loader((x, y), 30, augment=lambda b: ((b[0] - 0.5) / 0.1, b[1]))) == ""
    assert warnings_of(None, (x, y)) == ""
    assert warnings_of(Normalize([0.0], [1.0]), (x, y)) == ""


def test_random_changes_of_the_evaluation_data_are_reported_once(warnings_of):
    augment = [RandomCrop(2), RandomFlip(), NORMALIZE]
    told = warnings_of(augment, Loader(images(60, 1), 30, shuffle=False, augment=augment))
    assert told.count("changes images at random (RandomCrop(2), RandomFlip(0.5))") == 1


def test_changes_that_are_not_random_are_not_reported(warnings_of):
    augment = [RandomFlip(1.0), RandomCrop(0), NORMALIZE]
    assert warnings_of(augment, Loader(images(60, 1), 30, shuffle=False, augment=augment)) == ""


def test_the_part_of_a_batch_that_is_normalized_is_compared(make, capsys):
    def step(model, batch):
        return nn.functional.cross_entropy(model(batch["image"].flatten(1)), batch["label"])

    def data(seed):
        x, y = images(60, seed)
        return {"label": y, "image": x}

    loader = Loader(data(0), 30, seed=0, augment=Normalize([0.5], [0.1], of="image"))
    make(nn.Linear(28 * 28, 10), step).fit(loader, epochs=1, eval_data=data(1))
    assert capsys.readouterr().err.count("and the evaluation data is not") == 1


def test_evaluation_data_alone_that_is_normalized_is_reported(warnings_of):
    told = warnings_of(None, Loader(images(60, 1), 30, shuffle=False, augment=NORMALIZE))
    assert told.count("the evaluation data is normalized by Normalize([0.5], [0.1]), and the training") == 1


def test_two_normalizations_are_reported_if_the_images_differ(warnings_of):
    other = Normalize([0.1], [0.3])
    told = warnings_of(NORMALIZE, Loader(images(60, 1), 30, shuffle=False, augment=other))
    assert told.count("and the evaluation data by Normalize([0.1], [0.3])") == 1
    x, y = images(60, 1)
    scaled = Loader((x * 100, y), 30, shuffle=False, augment=Normalize([50.0], [10.0]))
    assert warnings_of(NORMALIZE, scaled) == ""


def test_images_up_to_255_are_reported_if_those_of_the_training_are_up_to_1(warnings_of):
    x, y = images(60, 1)
    told = warnings_of(None, (x * 255, y))
    assert "the training images have values from 0 to 1 and the evaluation images from 0 to 255" in told
