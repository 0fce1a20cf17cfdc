"""Trainers on several ranks, forked from a process that has imported torch already: that takes seconds."""

import pytest
import torch

from flodl import Trainer
from flodl.distributed.supervisor import Supervisor

from ...distributed.forked_ranks import ForkLauncher

# The first optimizer and the first step import a lot.
WARM_UP = """
import flodl.train.ranks.worker
from flodl import TrainStep
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
TrainStep(model, optimizer, lambda m, x: m(x).mean(), tier="eager")(torch.ones(2, 1))
"""


@pytest.fixture(scope="session")
def launcher():
    found = ForkLauncher(WARM_UP)
    yield found
    found.close()


class Supervision:
    """Short deadlines, and what the supervisor of the last run wrote to its log."""

    def __init__(self, launcher, patch):
        self._launcher, self._patch = launcher, patch
        self.records = []
        self.use()

    def use(self, *, faults=(), on_record=None, **settings):
        def supervisor(*args, on_event, **options):
            def record(found):
                self.records.append(found)
                on_event(found)
                if on_record is not None:
                    on_record(found)

            return Supervisor(
                *args,
                on_event=record,
                faults=tuple(faults),
                **{**options, "launcher": self._launcher, **settings},
            )

        self._patch.setattr("flodl.train.ranks.fit.Supervisor", supervisor)

    def kinds(self, kind):
        return [record for record in self.records if record["kind"] == kind]

    def check_coverage(self, num_samples, epochs):
        """Each position of each epoch is committed exactly once."""
        for epoch in epochs:
            positions = [
                position
                for record in self.kinds("commit")
                for _, found, _, ranges in record["work"]
                if found == epoch
                for start, stop in ranges
                for position in range(start, stop)
            ]
            assert sorted(positions) == list(range(num_samples)), f"epoch {epoch}"


@pytest.fixture
def supervision(launcher, monkeypatch):
    return Supervision(launcher, monkeypatch)


@pytest.fixture
def data():
    x = torch.randn(240, 4, generator=torch.Generator().manual_seed(0))
    return x, x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]]) + 1.0


@pytest.fixture
def make(supervision):
    """Return a function that makes a trainer on two ranks; arguments override its settings."""

    def make_trainer(model=None, step_fn=None, **settings):
        def loss_of(model, x, y):
            error = model(x) - y
            return error.square().mean(), {"mae": error.abs().mean()}

        if model is None:
            torch.manual_seed(0)
            model = torch.nn.Linear(4, 1)
        settings = {
            "optimizer": lambda groups: torch.optim.SGD(groups, lr=0.05),
            "devices": ["cpu", "cpu"],
            "monitor": False,
            "tier": "eager",
            **settings,
        }
        if "device" in settings:
            settings.pop("devices")
        return Trainer(model, step_fn or loss_of, **settings)

    return make_trainer
