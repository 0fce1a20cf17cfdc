"""Tensors that modules store as plain attributes, such as a hidden state, are in no save, and reported."""

from collections import deque

import pytest
import torch
from torch import nn

from flodl.data import Loader


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


class Recurrent(nn.Module):
    """Continues with the hidden state of the last batch, as in truncated backpropagation through time."""

    def __init__(self, kind=nn.GRU, *, resets=False):
        super().__init__()
        self.rnn, self.out, self.h, self.resets = kind(3, 4), nn.Linear(4, 1), None, resets

    def forward(self, x):
        if self.resets:
            self.h = None
        found, state = self.rnn(x[None], self.h)
        self.h = tuple(one.detach() for one in state) if isinstance(state, tuple) else state.detach()
        return self.out(found[0])


class Registered(Recurrent):
    def __init__(self):
        super().__init__()
        del self.h
        self.register_buffer("h", torch.zeros(1, 5, 4))


class TwoParts(Recurrent):
    """An LSTM whose state is in two attributes, which are of no use alone."""

    def __init__(self):
        super().__init__(nn.LSTM)
        self.c = None

    def forward(self, x):
        state = None if self.h is None else (self.h, self.c)
        found, (h, c) = self.rnn(x[None], state)
        self.h, self.c = h.detach(), c.detach()
        return self.out(found[0])


class Cached(nn.Module):
    """Stores a mask and its last output, which no later step depends on, and past inputs if asked to."""

    def __init__(self, *, remembers=False):
        super().__init__()
        self.linear, self.mask, self.last, self.past = nn.Linear(3, 1), None, None, deque(maxlen=2)
        self.remembers = remembers

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.linspace(0, 1, x.shape[1])
        self.last = self.linear(x * self.mask)
        if self.remembers:
            self.past.append(x.detach().mean(0))
            return self.last + self.linear(sum(self.past))
        return self.last


class Extra(Recurrent):
    def get_extra_state(self):
        return self.h

    def set_extra_state(self, state):
        self.h = state


class KeepsHidden:
    """A hook that saves the hidden state."""

    def __init__(self, model):
        self.model = model

    def on_epoch_end(self):
        pass

    def state_dict(self):
        return {} if self.model.h is None else {"h": self.model.h}

    def load_state_dict(self, state):
        self.model.h = state.get("h")


@pytest.fixture
def warnings(make, data, tmp_path, capsys):
    def run(model, *, saves=True, **settings):
        folder = {"checkpoint_dir": tmp_path / "run"} if saves else {}
        make(model, loss_of, **folder, **settings).fit(Loader(data, 5, drop_last=True), epochs=2)
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (lambda: Recurrent(), "'h' of the model, a plain tensor, which is not saved"),
        (lambda: nn.Sequential(Recurrent()), "'0.h' of the model, a plain tensor"),
        (lambda: Recurrent(nn.LSTM), "'h' of the model, a plain tensor"),
        (lambda: TwoParts(), "'h' and 'c' of the model, plain tensors, which are not saved"),
        (lambda: Cached(remembers=True), "'past' of the model, a plain tensor"),
    ],
)
def test_a_hidden_state_that_is_not_a_buffer_is_reported_once(warnings, model, names):
    err = warnings(model())
    assert err.count("not saved: a resumed run") == 1
    assert f"the step updates {names}" in err


def test_the_remedy_has_the_size_of_the_buffer(warnings):
    assert "self.register_buffer('h', torch.zeros(1, 5, 4))" in warnings(Recurrent())


@pytest.mark.parametrize(
    "model", [lambda: Recurrent(resets=True), Registered, Cached, Extra, lambda: nn.Linear(3, 1)]
)
def test_values_that_are_saved_or_that_no_later_step_uses_are_not_reported(warnings, model):
    assert "not saved: a resumed run" not in warnings(model())


def test_a_hidden_state_that_a_hook_saves_is_not_reported(warnings):
    model = Recurrent()
    assert "not saved: a resumed run" not in warnings(model, hooks=[KeepsHidden(model)])


def test_nothing_is_reported_without_saves(warnings):
    assert "not saved: a resumed run" not in warnings(Recurrent(), saves=False)
