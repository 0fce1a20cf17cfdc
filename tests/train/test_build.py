"""An optimizer that cannot be built or cannot update anything is rejected at once."""

import pytest
import torch
from torch import nn

from flodl.core import TrainError


def test_a_function_without_arguments_in_place_of_an_optimizer_is_an_error(make):
    model = nn.Linear(3, 1)
    with pytest.raises(
        TrainError,
        match=r"cannot be called with one argument, the parameter groups .* optimizer=lambda groups:",
    ):
        make(model, optimizer=lambda: torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_type_error_inside_the_function_stays_one(make):
    def broken(groups):
        return torch.optim.SGD(groups, rate=0.1)

    with pytest.raises(TypeError, match="rate"):
        make(optimizer=broken)


@pytest.mark.parametrize("rate", [1e39, float("inf"), float("nan"), torch.tensor(float("inf"))])
def test_a_learning_rate_that_is_not_a_usable_number_is_an_error(make, rate):
    with pytest.raises(
        TrainError, match=r"the learning rate of group 0 of the optimizer is (1e\+39|inf|nan)"
    ):
        make(optimizer=lambda groups: torch.optim.SGD(groups, lr=rate))


def test_what_torch_rejects_is_an_flodl_error(make):
    with pytest.raises(TrainError, match="the optimizer cannot be built: Invalid learning rate: -1"):
        make(optimizer=lambda groups: torch.optim.SGD(groups, lr=-1))
