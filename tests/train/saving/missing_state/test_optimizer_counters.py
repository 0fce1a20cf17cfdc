"""A counter of an optimizer that no save contains is reported at the first save."""

import pytest
import torch


class EverySecond(torch.optim.SGD):
    """Takes twice the step in every second update."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.01)
        self.calls = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        for _ in range(1 + self.calls % 2):
            super().step()


class InTheState(EverySecond):
    def state_dict(self):
        return {**super().state_dict(), "calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]
        super().load_state_dict({name: state[name] for name in ("state", "param_groups")})


class InTheGroups(torch.optim.SGD):
    """Counts where the message says, and remembers values of its last step, also an integer."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.01)
        self.last_norm, self.last_count = 0.0, 0
        for group in self.param_groups:
            group["count"] = 0

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] += 1
            self.last_count = group["count"]
            self.last_norm = float(sum(one.grad.norm() for one in group["params"]))
            for _ in range(1 + self.last_count % 2):
                super().step()


@pytest.mark.parametrize("kind", [EverySecond, InTheState, InTheGroups, torch.optim.Adam])
def test_a_counter_that_no_save_contains_is_reported_once(make, data, tmp_path, capsys, kind):
    make(optimizer=kind, checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=5)
    told = capsys.readouterr().err
    assert told.count("the optimizer EverySecond counts in 'calls', and no save contains it") == (
        kind is EverySecond
    )
    assert ("no save" in told) == (kind is EverySecond)


@pytest.mark.parametrize("kind", [InTheState, InTheGroups])
def test_a_counter_in_the_state_of_the_optimizer_continues_after_a_resume(make, data, tmp_path, kind):
    def losses(epochs, **settings):
        return make(optimizer=kind, seed=0, **settings).fit(data, epochs=epochs, batch_size=7).history

    losses(1, checkpoint_dir=tmp_path)  # three updates
    assert losses(3, checkpoint_dir=tmp_path) == losses(3)
