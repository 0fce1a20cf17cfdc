"""Buffers that a state_dict omits are restored after a resume, whatever their shape."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl.train.saving.buffers import restore_buffers, unsaved_buffers


class Counting(nn.Module):
    """Its output depends on its number of calls, which is kept in buffers outside its state_dict."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 1)
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.register_buffer("spread", torch.zeros(1).expand(2), persistent=False)
        self.register_buffer("none_yet", None, persistent=False)
        self.register_buffer("all", torch.zeros(0), persistent=False)

    def forward(self, x):
        if self.training:
            self.calls += 1
            self.spread = self.spread + 1
            self.none_yet = self.calls.clone() if self.none_yet is None else self.none_yet + 1
            self.all = torch.cat([self.all, self.calls.reshape(1)])
            if not hasattr(self, "late"):
                self.register_buffer("late", torch.zeros(()), persistent=False)
            self.late += 1
        seen = self.calls + self.spread.sum() + self.none_yet + self.all.sum() + self.late
        return self.linear(x) * (1 + 0.01 * seen)


def test_a_resumed_run_has_the_buffers_that_a_state_dict_omits(make, data, tmp_path):
    whole = make(Counting(), optimizer=lambda groups: torch.optim.SGD(groups, lr=0.001))
    whole.fit(data, epochs=2, batch_size=4)

    def on_step_end(trainer, step):
        if step == 7:
            trainer.stop()

    for hooks in ([on_step_end], []):
        trainer = make(
            Counting(),
            optimizer=lambda groups: torch.optim.SGD(groups, lr=0.001),
            checkpoint_dir=tmp_path,
            hooks=hooks,
        )
        trainer.fit(data, epochs=2, batch_size=4)
    assert trainer.history == whole.history
    assert torch.equal(trainer.model.linear.weight, whole.model.linear.weight)


def test_a_buffer_of_the_same_shape_is_filled_in_place():
    model, other = Counting(), Counting()
    for _ in range(3):
        other(torch.ones(1, 3))
    place = model.calls.data_ptr()
    restore_buffers(model, unsaved_buffers(other), torch.device("cpu"))
    assert model.calls.data_ptr() == place
    assert all(
        torch.equal(value, unsaved_buffers(model)[name]) for name, value in unsaved_buffers(other).items()
    )
    assert set(model.state_dict()) == {"linear.weight", "linear.bias"}


@pytest.mark.parametrize("path", ["gone.calls", "linear"])
def test_a_buffer_that_the_model_does_not_have_is_ignored(path):
    model = Counting()
    restore_buffers(model, {path: torch.ones(2)}, torch.device("cpu"))
    assert set(unsaved_buffers(model)) == {"calls", "spread", "all"}
