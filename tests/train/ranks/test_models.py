"""Models, optimizers and data of several kinds reach the ranks."""

import pytest
import torch
from torch import nn

from flodl import FlowBuilder
from flodl.data import Loader

pytestmark = pytest.mark.slow


def test_a_graph_trains_on_ranks(make, data):
    torch.manual_seed(0)
    model = FlowBuilder(nn.Linear(4, 8)).through(lambda x: x.tanh()).through(nn.Linear(8, 1)).build()
    result = make(model).fit(data, epochs=3, batch_size=8, eval_data=data)
    assert result.metrics["eval_loss"] < result.history[0]["eval_loss"]


def test_an_optimizer_that_was_built_before_trains_on_ranks(make, data):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(
        [{"params": [model.weight], "lr": 0.05}, {"params": [model.bias], "lr": 0.01}], weight_decay=0.0
    )
    trainer = make(model, optimizer=optimizer, schedule=lambda step: min(1.0, step / 20) * 0.05)
    result = trainer.fit(data, epochs=4, batch_size=4)
    assert result.metrics["loss"] < 0.5 * result.history[0]["loss"]
    assert trainer.optimizer is optimizer
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.01])
    assert len(optimizer.state) == 2


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        return torch.full((4,), float(index)), torch.tensor([1.0])


def test_datasets_and_loaders_are_read_at_positions(make, supervision):
    def mean_of(model, x, y):
        return (0.0 * model(x)).mean() + x.mean()

    class Local(Squares): ...

    loader = Loader(Local(), batch_size=8, seed=3, drop_last=True, num_workers=0)
    result = make(nn.Linear(4, 1), mean_of).fit(loader, epochs=2)
    assert result.steps == 12
    supervision.check_coverage(48, range(2))
    alone = make(nn.Linear(4, 1), mean_of, device="cpu").fit(
        Loader(Local(), batch_size=8, seed=3, drop_last=True), epochs=2
    )
    assert [row["loss"] for row in result.history] == pytest.approx([row["loss"] for row in alone.history])


def test_dropout_differs_between_ranks_and_is_reproducible_for_each(make):
    """The loss is random, and does not depend on the model: its sum over ranks shows their random numbers."""

    def random_loss(model, x):
        return (0.0 * model(x)).mean() + torch.rand(())

    def losses():
        torch.manual_seed(0)
        found = make(nn.Linear(1, 1), random_loss).fit(torch.zeros(20, 1), epochs=1, batch_size=1)
        return found.history[0]["loss"]

    # A first window of ten batches for each rank is the whole epoch.
    assert losses() == pytest.approx(losses())
