"""Parameters that receive a gradient, and that no optimizer trains, are found before anything is trained."""

import copy

import pytest
import torch
from torch import nn

from flodl.core import TrainError


class LearnedScale(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, predictions, targets):
        return (predictions - targets).square().mean() * torch.exp(-self.log_scale) + self.log_scale


def small():
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))


def test_an_optimizer_that_was_built_before_a_module_was_replaced_is_an_error(make, data):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[1] = nn.Linear(4, 1)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        TrainError, match=r"does not have '1.weight', '1.bias' of the model, and has 2 param"
    ) as caught:
        make(model, optimizer=optimizer).fit(data, epochs=1, batch_size=8)
    assert caught.value.path == "1.weight"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_optimizer_of_a_copy_of_the_model_is_an_error(make, data):
    model = small()
    optimizer = torch.optim.SGD(copy.deepcopy(model).parameters(), lr=0.1)
    with pytest.raises(TrainError, match=r"'0.weight', '0.bias', '1.weight' and 1 more of the model"):
        make(model, optimizer=optimizer).fit(data, epochs=1, batch_size=8)


def test_training_a_part_of_a_model_together_with_the_loss_is_not_an_error(make, data, capsys):
    model, criterion = small(), LearnedScale()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD([*model[1].parameters(), *criterion.parameters()], lr=0.1)
    make(model, lambda model, x, y: criterion(model(x), y), optimizer=optimizer).fit(
        data, epochs=1, batch_size=8
    )
    assert criterion.log_scale.item() != 0
    assert capsys.readouterr().err == ""


def test_a_parameter_of_the_loss_that_is_in_no_optimizer_is_reported_once(make, data, capsys):
    criterion = LearnedScale()
    make(step_fn=lambda model, x, y: criterion(model(x), y)).fit(data, epochs=2, batch_size=8)
    warning = (
        "'criterion.log_scale', which the step function uses, receives a gradient and is in no optimizer, so "
        "nothing trains it. Pass it to the optimizer too, or set requires_grad=False."
    )
    assert capsys.readouterr().err.count(warning) == 1


def test_a_frozen_or_unused_parameter_of_the_loss_is_not_reported(make, data, capsys):
    frozen, unused = LearnedScale().requires_grad_(False), LearnedScale()

    def loss_of(model, x, y):
        unused.eval()
        return frozen(model(x), y)

    make(step_fn=loss_of).fit(data, epochs=1, batch_size=8)
    assert capsys.readouterr().err == ""


def test_a_parameter_that_another_optimizer_trains_is_not_reported(make, data, capsys):
    criterion = LearnedScale()
    other = torch.optim.SGD(criterion.parameters(), lr=0.1)
    make(step_fn=lambda model, x, y: criterion(model(x), y)).fit(data, epochs=1, batch_size=8)
    assert capsys.readouterr().err == ""
    del other


def test_training_a_global_copy_instead_of_the_model_of_the_trainer_is_an_error(make, data):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = make(copy.deepcopy(model), lambda _, x, y: (model(x) - y).square().mean(), optimizer=optimizer)
    with pytest.raises(TrainError, match=r"trains a different module of the same shapes.*first argument"):
        trainer.fit(data, epochs=1, batch_size=8)


def test_training_another_module_than_the_model_of_the_trainer_is_reported(make, data, capsys):
    backbone, head = nn.Linear(3, 4), nn.Linear(4, 1)

    def loss_of_head(backbone, x, y):
        with torch.no_grad():
            features = backbone(x)
        return (head(features) - y).square().mean()

    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    make(backbone, loss_of_head, optimizer=optimizer).fit(data, epochs=1, batch_size=8)
    assert "which evaluations and saves do not contain" in capsys.readouterr().err


def test_optimizing_an_input_of_a_frozen_model_is_not_reported(make, data, capsys):
    model, shift = small().requires_grad_(False), nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([shift], lr=0.1)
    make(model, lambda model, x, y: (model(x + shift) - y).square().mean(), optimizer=optimizer).fit(
        data, epochs=1, batch_size=8
    )
    assert capsys.readouterr().err == ""
