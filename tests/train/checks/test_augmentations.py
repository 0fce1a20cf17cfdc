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


def classifier():
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))


def test_a_later_evaluation_without_the_normalization_of_the_training_is_reported_once(make, capsys):
    trainer = make(classifier(), classify)
    trainer.fit(Loader(images(100, 0), 50, seed=0, augment=NORMALIZE), epochs=1)
    trainer.evaluate(Loader(images(60, 1), 30, shuffle=False, augment=NORMALIZE))
    assert capsys.readouterr().err == ""
    raw = images(60, 1)
    trainer.evaluate(raw)
    trainer.evaluate(raw)
    told = capsys.readouterr().err
    assert told.count("and the evaluation data is not") == 1
    assert (
        "trainer.evaluate(Loader(data, batch_size, shuffle=False, augment=Normalize([0.5], [0.1])))" in told
    )


def test_an_evaluation_of_a_restored_run_is_compared_with_its_record(make, capsys, tmp_path):
    x, y = images(100, 0)
    normalize = Normalize([x.mean().item()], [x.std().item()])
    settings = {"step_fn": classify, "checkpoint_dir": tmp_path}
    evaluation = Loader(images(60, 2), 30, shuffle=False, augment=normalize)
    make(classifier(), **settings).fit(
        Loader((x, y), 50, seed=0, augment=[RandomCrop(2), normalize]), epochs=1, eval_data=evaluation
    )
    trainer = make(classifier(), **settings)
    trainer.restore_best()
    trainer.evaluate(evaluation)
    assert capsys.readouterr().err == ""
    trainer.evaluate(images(60, 1))
    assert capsys.readouterr().err.count("and the evaluation data is not") == 1


@pytest.mark.parametrize("shape", [(-1, 1, 28, 28), (-1, 28, 28), (-1, 784)])
@pytest.mark.parametrize("top", [1, 255])
def test_images_that_are_normalized_by_hand_for_one_of_both_only_are_reported(make, capsys, shape, top):
    def told(training, evaluation):
        model, (x, y), (eval_x, eval_y) = classifier(), images(100, 0), images(60, 1)
        data, eval_data = (training(x).reshape(shape), y), (evaluation(eval_x).reshape(shape), eval_y)
        make(model, classify).fit(data, epochs=1, batch_size=50, eval_data=eval_data)
        return capsys.readouterr().err

    def normalized(x):
        return (x - 0.13) / 0.31

    def raw(x):
        return x * top

    assert "the training data seems to be normalized, but not the evaluation data" in told(normalized, raw)
    assert "the evaluation data seems to be normalized, but not the training data" in told(raw, normalized)
    assert told(normalized, normalized) == ""
    assert told(raw, raw) == ""


@pytest.mark.parametrize("shape", [(-1, 1, 28, 28), (-1, 28, 28), (-1, 784)])
@pytest.mark.parametrize("top", [1, 255])
@pytest.mark.parametrize("sd", [0.1, 0.3])
def test_noise_in_one_of_the_two_is_not_mistaken_for_normalization(make, capsys, shape, top, sd):
    (x, y), (clean_x, clean_y) = images(100, 0), images(60, 1)
    noisy = (top * (x + sd * torch.randn_like(x))).reshape(shape), y
    clean = (top * clean_x).reshape(shape), clean_y
    for data, eval_data in ((noisy, clean), (clean, noisy)):
        make(classifier(), classify).fit(data, epochs=1, batch_size=50, eval_data=eval_data)
    assert "normalized" not in capsys.readouterr().err


@pytest.fixture
def told_of_tables(make, capsys):
    """Return what a run prints for the inputs of training and evaluation."""

    def run(x, eval_x):
        data, eval_data = (x, x[:, :1].clone()), (eval_x, eval_x[:, :1].clone())
        trainer = make(nn.Linear(x.shape[1], 1), optimizer=lambda groups: torch.optim.SGD(groups, lr=1e-6))
        trainer.fit(data, epochs=1, batch_size=64, eval_data=eval_data)
        return capsys.readouterr().err

    return run


def test_a_table_that_is_standardized_for_one_of_both_only_is_reported(told_of_tables):
    torch.manual_seed(0)
    table = torch.randn(200, 5) * torch.tensor([15.0, 2e4, 1.0, 30.0, 4.0]) + torch.tensor(
        [45, 5e4, 3, 80, 50]
    )
    standardized = (table - table.mean(0)) / table.std(0)
    assert "the training data seems to be normalized" in told_of_tables(standardized[:100], table[100:])
    assert "the evaluation data seems to be normalized" in told_of_tables(table[:100], standardized[100:])
    assert told_of_tables(standardized[:100], standardized[100:]) == ""
    assert told_of_tables(table[:100], table[100:]) == ""


@pytest.mark.parametrize("count", [2, 20, 100])
def test_ordinary_splits_of_tables_are_not_reported(told_of_tables, count):
    torch.manual_seed(0)
    walk = torch.randn(400, 3).cumsum(0)
    tables = [
        walk / 20,  # a split by time
        torch.randn(400, 3),
        torch.rand(400, 3),
        torch.randint(2, (400, 3)).float(),
        torch.randn(400, 3).exp(),
        torch.randn(400, 3).sign(),
    ]
    for table in tables:
        assert told_of_tables(table[:300], table[300 : 300 + count]) == ""


SHARED = Normalize([0.13], [0.31])
IN_BYTES = Normalize([33.0], [79.0])


def as_bytes(x):
    return (x * 255).to(torch.uint8)


def up_to_255(x):
    return x * 255


def up_to_1(x):
    return x


@pytest.fixture
def told_of_scales(make, capsys):
    """Return what a run prints for images that are changed and normalized in its two loaders."""

    def run(change, normalize, eval_change, eval_normalize):
        (x, y), (eval_x, eval_y) = images(100, 0), images(60, 1)
        training = Loader((change(x), y), 50, seed=0, augment=normalize)
        evaluation = Loader((eval_change(eval_x), eval_y), 30, shuffle=False, augment=eval_normalize)
        make(classifier(), classify).fit(training, epochs=1, eval_data=evaluation)
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize("small", [as_bytes, up_to_1])
@pytest.mark.parametrize("others", [SHARED, Normalize([0.14], [0.3])], ids=["shared", "another"])
def test_images_on_other_scales_are_reported_with_normalize_on_both_loaders(told_of_scales, small, others):
    told = told_of_scales(small, SHARED, up_to_255, others)
    assert (
        told.count("the training images have values from 0 to 1 and the evaluation images from 0 to 255") == 1
    )
    assert "Divide the evaluation images by 255" in told
    told = told_of_scales(up_to_255, SHARED, small, others)
    assert (
        told.count("the training images have values from 0 to 255 and the evaluation images from 0 to 1") == 1
    )
    assert "Divide the training images by 255" in told


def test_images_up_to_1_with_the_statistics_of_bytes_are_reported(told_of_scales):
    told = told_of_scales(up_to_255, IN_BYTES, up_to_1, IN_BYTES)
    assert "and the evaluation images from 0 to 1 (only bytes" in told
    assert "Multiply the evaluation images by 255" in told
    assert "Multiply the training images by 255" in told_of_scales(up_to_1, IN_BYTES, up_to_255, IN_BYTES)


def brighten(batch):
    return (batch[0] * 1.2, *batch[1:])


def to_float(batch):
    return (batch[0].float() / 255, *batch[1:])


def by_hand(batch):
    return ((batch[0] - 0.13) / 0.31, *batch[1:])


@pytest.mark.parametrize(
    ("change", "augment", "eval_change", "eval_augment"),
    [
        (as_bytes, SHARED, as_bytes, SHARED),
        (as_bytes, SHARED, up_to_1, SHARED),
        (up_to_1, SHARED, as_bytes, [RandomCrop(0), SHARED]),
        (up_to_1, [RandomCrop(2), SHARED], up_to_1, SHARED),
        (up_to_255, [to_float, SHARED], up_to_255, [to_float, SHARED]),
        (as_bytes, [to_float, SHARED], up_to_1, SHARED),
        (up_to_255, [to_float, SHARED], as_bytes, SHARED),
        (up_to_255, IN_BYTES, up_to_255, IN_BYTES),
        (up_to_255, IN_BYTES, as_bytes, SHARED),
        (up_to_1, SHARED, up_to_255, IN_BYTES),
        (up_to_1, Normalize([0.5], [1.0]), up_to_1, Normalize([0.5], [1.0])),
        (up_to_1, [SHARED, brighten], up_to_1, SHARED),
        (up_to_1, SHARED, up_to_1, by_hand),
        (up_to_255, [to_float, by_hand], as_bytes, SHARED),
        (lambda x: x.half(), SHARED, up_to_1, SHARED),
        (lambda x: x.bfloat16() * 255, IN_BYTES, up_to_255, IN_BYTES),
    ],
)
def test_the_same_images_in_another_form_are_not_reported(
    told_of_scales, change, augment, eval_change, eval_augment
):
    assert told_of_scales(change, augment, eval_change, eval_augment) == ""


def test_augmented_images_on_other_scales_are_reported(told_of_scales):
    assert "Divide the evaluation images" in told_of_scales(as_bytes, [SHARED, brighten], up_to_255, SHARED)
    assert "Divide the training images" in told_of_scales(up_to_255, [SHARED, brighten], as_bytes, SHARED)


def test_images_up_to_255_without_the_normalization_of_the_others_are_reported(told_of_scales):
    told = told_of_scales(as_bytes, SHARED, up_to_255, None)
    assert (
        "and the evaluation data is not: its first batch has values from 0 to 255. Divide the images" in told
    )
    told = told_of_scales(up_to_255, None, as_bytes, SHARED)
    assert "and the training data is not: its first batch has values from 0 to 255. Divide the images" in told


@pytest.mark.parametrize("normalize", [SHARED, by_hand])
def test_images_that_were_normalized_by_hand_without_a_division_by_255_are_reported(
    told_of_scales, normalize
):
    told = told_of_scales(up_to_1, normalize, up_to_255, by_hand)
    assert "the evaluation images seem to have had values up to 255 when they were normalized" in told
    told = told_of_scales(up_to_255, by_hand, up_to_1, normalize)
    assert "the training images seem to have had values up to 255 when they were normalized" in told


def test_other_scales_are_reported_in_later_evaluations_too(make, capsys, tmp_path):
    (x, y), (eval_x, eval_y) = images(100, 0), images(60, 1)
    settings = {"step_fn": classify, "checkpoint_dir": tmp_path}
    trainer = make(classifier(), **settings)
    trainer.fit(Loader((x, y), 50, seed=0, augment=SHARED), epochs=1)
    restored = make(classifier(), **settings)
    restored.restore_best("loss")
    capsys.readouterr()
    for one in (trainer, restored):
        one.evaluate(Loader((as_bytes(eval_x), eval_y), 30, shuffle=False, augment=SHARED))
        assert capsys.readouterr().err == ""
        one.evaluate(Loader((eval_x * 255, eval_y), 30, shuffle=False, augment=SHARED))
        assert "and the evaluation images from 0 to 255" in capsys.readouterr().err


def test_a_part_is_the_same_by_its_index_and_by_its_place(told_of_scales):
    told = told_of_scales(up_to_1, None, up_to_1, Normalize([0.5], [0.1], of=0))
    assert "the evaluation data is normalized by Normalize([0.5], [0.1], of=0), and the training" in told


def test_random_changes_in_an_evaluation_without_training_are_reported_once(make, capsys):
    def step(model, x, y):
        return nn.functional.cross_entropy(model(x.flatten(1)), y)

    trainer = make(nn.Linear(28 * 28, 10), step)
    for _ in range(2):
        trainer.evaluate(Loader(images(60, 1), 30, shuffle=False, augment=RandomCrop(2)))
    assert capsys.readouterr().err.count("changes images at random (RandomCrop(2))") == 1
