"""A layer whose input has the wrong shape is named, with what it takes and what it got."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flodl import FlowBuilder, Trainer
from flodl.engine import TrainStep
from flodl.engine.errors import StepFunctionError

IMAGES, LABELS = torch.rand(4, 1, 8, 8), torch.zeros(4, dtype=torch.long)


def classes(model, x, y):
    return F.cross_entropy(model(x), y)


def new_step(model, step_fn=classes):
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager")


def convolution(channels=1):
    return nn.Sequential(nn.Conv2d(channels, 2, 3), nn.Flatten(), nn.Linear(72, 3))


@pytest.mark.parametrize(
    ("model", "x", "path", "advice"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Linear(5, 3)),
            IMAGES,
            "2",
            "This Linear takes 5 features, and its input has shape [4, 6]. Write nn.Linear(6, 3), or change "
            "its input.",
        ),
        (
            nn.Sequential(nn.Linear(64, 3)),
            IMAGES,
            "0",
            "has shape [4, 1, 8, 8]. Flatten the input first, with nn.Flatten() or x.flatten(1).",
        ),
        (
            nn.Sequential(nn.Linear(1, 3)),
            IMAGES[:, 0, 0, 0],
            "0",
            "its input has shape [4]. Add the dimension of the features: x.unsqueeze(1).",
        ),
        (
            convolution(),
            IMAGES.squeeze(1),
            "0",
            "This Conv2d takes [N, 1, H, W], and its input has shape [4, 8, 8]. Add the dimension of the "
            "channel: x.unsqueeze(1).",
        ),
        (
            convolution(3),
            torch.rand(4, 8, 8, 3),
            "0",
            "Its channels are last: pass x.permute(0, 3, 1, 2).",
        ),
        (convolution(3), IMAGES, "0", "Write nn.Conv2d(1, 2, …), or change its input."),
        (convolution(), IMAGES.flatten(1), "0", "its input has shape [4, 64]. Reshape it"),
        (
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(72, 3)),
            IMAGES,
            "1",
            "BatchNorm2d normalizes 6 channels (dimension 1), and its input has shape [4, 2, 6, 6]. Write "
            "nn.BatchNorm2d(2), or",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.BatchNorm2d(64), nn.Linear(64, 3)),
            IMAGES,
            "1",
            "For an input of 2 dimensions, write nn.BatchNorm1d(64).",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.LayerNorm(6), nn.Linear(64, 3)),
            IMAGES,
            "1",
            "The input of this LayerNorm has shape [4, 64]. Change the layer to accept it, or change its",
        ),
    ],
)
def test_the_layer_is_named_with_what_it_takes_and_what_to_write(model, x, path, advice):
    with pytest.raises(StepFunctionError) as raised:
        new_step(model)(x, LABELS)
    assert str(raised.value).startswith(f"at '{path}': ")
    assert advice in str(raised.value)
    assert "order of the arguments" not in str(raised.value)


def test_a_node_of_a_graph_is_named_by_its_tag():
    model = FlowBuilder(nn.Flatten()).through(nn.Linear(64, 6)).through(nn.Linear(5, 3)).tag("head").build()
    with pytest.raises(StepFunctionError, match=r"^at 'head': .*Write nn.Linear\(6, 3\)"):
        new_step(model)(IMAGES, LABELS)


def test_a_layer_that_fits_another_part_of_the_batch_hints_at_their_order():
    inputs, targets = torch.rand(4, 6), torch.rand(4, 2)
    with pytest.raises(StepFunctionError, match=r"order of the arguments, too: x is float32 \[4, 2\] and y"):
        new_step(nn.Linear(6, 2), lambda model, x, y: F.mse_loss(model(x), y))(targets, inputs)


def test_the_advice_reaches_the_user_of_a_trainer():
    trainer = Trainer(
        convolution(),
        classes,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
        device="cpu",
        monitor=False,
    )
    with pytest.raises(StepFunctionError, match=r"^at '0': .*x\.unsqueeze\(1\)"):
        trainer.fit((IMAGES.squeeze(1), LABELS), epochs=1, batch_size=4)


def test_a_layer_that_gets_the_tuple_of_a_recurrent_one_is_told_where_it_comes_from() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3))
    words = r"The Linear at '2' gets a tuple: the GRU at '1' returns a tuple of its output .*, _ = gru\(x\)"
    with pytest.raises(StepFunctionError, match=words):
        new_step(model, lambda m, x: m(x).mean())(torch.ones(2, 7, dtype=torch.int64))


def test_images_without_a_channel_are_not_called_sequences() -> None:
    step = new_step(nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 3)))
    with pytest.raises(StepFunctionError, match=r"Add the dimension that is missing: x\.unsqueeze\(1\)"):
        step(IMAGES.squeeze(1), LABELS)


def test_an_input_with_one_number_per_sample_names_the_order_of_the_batch():
    model = nn.Sequential(nn.Linear(16, 3))
    with pytest.raises(StepFunctionError, match=r"needed: \[4, 16\]\. Check the order.*x is int64 \[4\]"):
        new_step(model, lambda model, x, y: classes(model, x.float(), y))(LABELS, torch.rand(4, 16))
