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


class Wrapper(torch.optim.Optimizer):
    """Passes every step on, without the __init__ of torch."""

    def __init__(self, inner):
        self.inner, self.param_groups = inner, inner.param_groups
        self.state, self.defaults = inner.state, inner.defaults

    def step(self, closure=None):
        self.inner.step()


class Initialized(Wrapper):
    def __init__(self, inner):
        torch.optim.Optimizer.__init__(self, inner.param_groups, inner.defaults)
        super().__init__(inner)


class Saving(Wrapper):
    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state):
        self.inner.load_state_dict(state)


class WithoutGroups(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner


def wrapped_by(kind):
    return lambda groups: kind(torch.optim.SGD(groups, lr=0.1))


def test_a_wrapper_without_the_init_of_torch_is_an_error_where_it_would_be_saved(make, tmp_path):
    message = r"the optimizer Wrapper cannot be saved: its __init__ .* Call super\(\).__init__"
    with pytest.raises(TrainError, match=message):
        make(optimizer=wrapped_by(Wrapper), checkpoint_dir=tmp_path)
    with pytest.raises(TrainError, match="the optimizer WithoutGroups has no 'param_groups' and no 'state'"):
        make(optimizer=wrapped_by(WithoutGroups))


@pytest.mark.parametrize("kind", [Initialized, Saving])
def test_a_wrapper_that_can_be_saved_trains_with_a_folder_and_one_that_cannot_without(
    make, data, tmp_path, kind
):
    saved = make(optimizer=wrapped_by(kind), checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    alone = make(optimizer=wrapped_by(Wrapper)).fit(data, epochs=1, batch_size=8)
    assert saved.history == alone.history
