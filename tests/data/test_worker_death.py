"""A worker that dies is always explained, also after it has sent batches, and in the middle of a step."""

import os
import signal
import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from flodl import Trainer, TrainStep
from flodl.core import DataError
from flodl.data import Loader

# The signal may interrupt a finalizer, in which Python only prints errors; the death is then noticed later.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Deadly(Dataset):
    def __init__(self, end, at):
        self.end, self.at = end, at

    def __len__(self):
        return 60

    def __getitem__(self, index):
        if index == self.at:
            self.end()
        return torch.zeros(200)


def be_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def exit_program():
    raise SystemExit(1)


def exit_at_once():
    os._exit(3)


def ours(data, num_workers):
    return Loader(data, 6, num_workers=num_workers, shuffle=False)


def of_torch(data, num_workers):
    return Loader(DataLoader(data, 6, num_workers=num_workers), None)


def read_slowly(loader, pause):
    for _ in loader:
        time.sleep(pause)


@pytest.mark.parametrize("make", [ours, of_torch])
@pytest.mark.parametrize("end", [be_killed, exit_program, exit_at_once])
@pytest.mark.parametrize("pause", [0, 0.02])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_death_is_explained_whenever_it_happens(make, end, pause, num_workers, capfd):
    loader = make(Deadly(end, 20), num_workers)
    with pytest.raises(DataError, match=r"a worker of the loader died: process \(pid") as caught:
        read_slowly(loader, pause)
    assert str(caught.value).endswith("Use num_workers=0 to find out where.")
    loader.close()


def slow_loss(model, x):
    time.sleep(0.05)
    return model(x).square().mean()


def sgd(groups):
    return torch.optim.SGD(groups, lr=0.1)


@pytest.mark.parametrize("make", [ours, lambda data, count: DataLoader(data, 6, num_workers=count)])
def test_a_step_is_not_blamed_for_the_death(make):
    trainer = Trainer(nn.Linear(200, 1), slow_loss, optimizer=sgd, device="cpu", monitor=False)
    with pytest.raises(DataError, match="a worker of the loader died") as caught:
        trainer.fit(make(Deadly(be_killed, 45), 1), epochs=1)
    assert "step function" not in "".join(getattr(caught.value, "__notes__", ()))


def test_a_train_step_is_not_blamed_for_the_death_of_a_worker_of_torch():
    model = nn.Linear(200, 1)

    def interrupted(model, x):
        handler = torch.futures.Future()
        handler.set_exception(RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed. "))
        handler.wait()

    step = TrainStep(model, sgd(model.parameters()), interrupted)
    with pytest.raises(RuntimeError, match="is killed") as caught:
        step(torch.zeros(2, 200))
    assert not hasattr(caught.value, "__notes__")
