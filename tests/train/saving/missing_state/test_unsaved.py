"""State that hooks, data and optimizers change and that no save contains is reported at the first save."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset

from flodl import Loader


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


@pytest.fixture
def fit(make, data, tmp_path, capsys):
    """Return a function that trains for two epochs and returns the warnings."""

    def run(step_fn=loss_of, *, model=None, on=None, epochs=2, saves=True, **settings):
        folder = {"checkpoint_dir": tmp_path / "run"} if saves else {}
        size = {} if isinstance(on, Loader | DataLoader) else {"batch_size": 5}
        trainer = make(net() if model is None else model, step_fn, **folder, **settings)
        trainer.fit(data if on is None else on, epochs=epochs, **size)
        return capsys.readouterr().err

    return run


class Noisy(Dataset):
    def __init__(self, data, *, seeds=False, local=False):
        self.data, self.seeds, self.local = data, seeds, local
        self.rng = torch.Generator() if seeds else np.random.RandomState(0)

    def __len__(self):
        return len(self.data[0])

    def draw(self, index):
        if self.local:
            return np.random.default_rng(index).normal()
        return self.rng.normal()

    def __getitem__(self, index):
        return self.data[0][index] + float(self.draw(index)), self.data[1][index]


class Reseeded(Noisy):
    def __getitem__(self, index):
        self.rng.manual_seed(index)
        return self.data[0][index] + torch.rand(3, generator=self.rng), self.data[1][index]


def test_a_generator_of_a_dataset_is_reported_once(fit, data):
    message = "the dataset Noisy draws from 'self.rng', a generator of its own, whose state is in no save"
    assert fit(on=Noisy(data)).count(message) == 1


def test_a_generator_of_a_dataset_in_a_dataloader_is_reported(fit, data):
    assert "the dataset Noisy draws from" in fit(on=DataLoader(Noisy(data), batch_size=5))


@pytest.mark.parametrize("place", ["augment", "transform", "collate"])
def test_a_generator_of_a_function_of_the_data_is_reported(fit, data, place):
    rng = np.random.default_rng(0)

    def augment(batch, chance):
        return batch[0] + float(rng.normal()), batch[1]

    def transform(sample):
        return sample[0] + float(rng.normal()), sample[1]

    def collate(samples):
        x, y = zip(*samples)
        return torch.stack(x) + float(rng.normal()), torch.stack(y)

    functions = {"augment": augment, "transform": transform, "collate": collate}
    source = list(zip(*data)) if place != "augment" else data
    loader = Loader(source, 5, seed=0, **{place: functions[place]})
    assert f"{place} draws from 'rng', a generator" in fit(on=loader)


@pytest.mark.parametrize("kind", ["local", "reseeded", "nothing saved"])
def test_generators_without_state_to_save_are_not_reported(fit, data, kind):
    dataset = Reseeded(data, seeds=True) if kind == "reseeded" else Noisy(data, local=kind == "local")
    assert "draws from" not in fit(on=dataset, saves=kind != "nothing saved")


def test_an_averaged_model_in_a_hook_is_reported_once(fit):
    model = net()
    average = AveragedModel(model)

    def on_epoch_end():
        average.update_parameters(model)

    err = fit(model=model, hooks=[on_epoch_end])
    assert err.count("the hook on_epoch_end changes 'average' (AveragedModel), and no save contains it") == 1


class Critic:
    """Trains a second network after each step."""

    def __init__(self):
        self.network = nn.Linear(3, 1)
        self.optimizer = torch.optim.Adam(self.network.parameters())

    def on_step_end(self, batch):
        self.optimizer.zero_grad()
        self.network(batch[0]).mean().backward()
        self.optimizer.step()


class SavedCritic(Critic):
    def state_dict(self):
        return {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state):
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])


class RestoredCritic(Critic):
    def on_resume(self):
        """Load what the program saved itself."""


def test_a_network_and_its_optimizer_in_a_hook_are_reported(fit):
    assert "the hook Critic changes 'self.network' (Linear)" in fit(hooks=[Critic()])


@pytest.mark.parametrize("hook", [SavedCritic, RestoredCritic])
def test_a_network_that_a_hook_saves_or_restores_is_not_reported(fit, hook):
    assert "no save contains" not in fit(hooks=[hook()])


def test_modules_that_do_not_change_or_follow_the_model_are_not_reported(fit):
    model = net()
    features, latest = nn.Linear(3, 2), copy.deepcopy(model)

    def on_epoch_end(metrics):
        latest.load_state_dict(model.state_dict())
        metrics["size"] = features(torch.ones(1, 3)).sum().item() + latest(torch.ones(1, 3)).item()

    assert "no save contains" not in fit(model=model, hooks=[on_epoch_end])


def test_a_second_optimizer_in_the_step_function_is_reported(fit):
    model = nn.ModuleDict({"main": net(), "critic": nn.Linear(3, 1)})
    second = torch.optim.Adam(model["critic"].parameters())

    def step_fn(model, x, y):
        second.zero_grad()
        model["critic"](x).mean().backward()
        second.step()
        return loss_of(model["main"], x, y)

    optimizer = torch.optim.SGD(model["main"].parameters(), lr=0.01)
    err = fit(step_fn, model=model, optimizer=optimizer)
    assert err.count("the step function changes 'second' (Adam), and no save contains it") == 1


class Wrapper(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})
        self.base = torch.optim.Adam(self.param_groups, lr=0.01)
        self.param_groups = self.base.param_groups

    def step(self, closure=None):
        self.base.step()


class SavedWrapper(Wrapper):
    def state_dict(self):
        return self.base.state_dict()

    def load_state_dict(self, state):
        self.base.load_state_dict(state)


@pytest.mark.parametrize("kind", [Wrapper, SavedWrapper])
def test_an_inner_optimizer_whose_state_is_lost_is_reported(fit, kind):
    message = f"the optimizer {kind.__name__} wraps an Adam ('base'), whose state is in no save"
    assert fit(optimizer=kind).count(message) == (kind is Wrapper)


class HeadOnly(nn.Module):
    """A model whose state_dict contains only its head."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.body(x))

    def state_dict(self, *args, **settings):
        every = super().state_dict(*args, **settings)
        return {name: value for name, value in every.items() if name.startswith("head")}


@pytest.mark.parametrize("is_frozen", [False, True])
def test_trained_parameters_that_the_state_dict_lacks_are_reported(fit, is_frozen):
    model = HeadOnly()
    model.body.requires_grad_(not is_frozen)
    err = fit(model=model)
    assert ("the optimizer trains 'body.weight' and 1 more, which model.state_dict()" in err) != is_frozen


class Centered(nn.Module):
    """Subtracts a running mean, which is a plain tensor, and remembers its last output."""

    def __init__(self, *, is_buffer=False):
        super().__init__()
        self.linear, self.last = nn.Linear(3, 1), torch.zeros(5, 1)
        if is_buffer:
            self.register_buffer("center", torch.zeros(1))
        else:
            self.center = torch.zeros(1)

    def forward(self, x):
        self.last = self.linear(x)
        if self.training:
            self.center = 0.9 * self.center + 0.1 * self.last.mean(0).detach()
        return self.last - self.center


@pytest.mark.parametrize("is_buffer", [False, True])
def test_a_running_mean_that_is_not_a_buffer_is_reported(fit, is_buffer):
    err = fit(model=Centered(is_buffer=is_buffer))
    assert err.count("the step updates 'center' of the model, a plain tensor, which is not saved") == (
        not is_buffer
    )
    assert "'last'" not in err
