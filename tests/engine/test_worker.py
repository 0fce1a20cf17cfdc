"""What the process that compiles does with what it is sent."""

from __future__ import annotations

import os
import threading

import cloudpickle
import pytest
import torch
from torch import nn

from flodl.engine import TrainStep, worker
from flodl.engine.batch import signature
from flodl.engine.beside import packed
from flodl.engine.runners import Micro


def sent(step_fn, **settings) -> dict:
    model = nn.Linear(4, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, **settings)
    batch = (torch.ones(8, 4), torch.zeros(8, 2))
    return cloudpickle.loads(packed(step._body, Micro(batch, signature(batch), "only", 1.0)))


def test_the_step_is_run_until_everything_is_compiled_and_changes_nothing(
    quick_compiler, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = []

    def spying(model, x, y):
        return nn.functional.mse_loss(model(x), y)

    parts = sent(spying)
    parts["step_fn"] = lambda model, x, y: (seen.append(x.shape), spying(model, x, y))[1]
    monkeypatch.chdir("/")
    worker.compile_once(parts, tune=None)
    assert os.getcwd() == str(tmp_path)
    assert seen == [torch.Size([8, 4])] * 2
    assert not parts["model"].weight.any()


def test_what_goes_wrong_is_said_in_one_line(quick_compiler, monkeypatch) -> None:
    parts = sent(lambda model, x, y: None)

    class Pipe:
        def __init__(self, *_, **__) -> None: ...

        def recv(self) -> dict:
            return parts

    monkeypatch.setattr(worker, "Connection", Pipe)
    monkeypatch.setattr(worker, "_leave_with_the_parent", lambda: None)
    monkeypatch.setattr(os, "nice", lambda by: 0)
    monkeypatch.setattr(worker.sys, "stdin", open(os.devnull))  # noqa: SIM115
    with pytest.raises(SystemExit) as ended:
        worker.main(None)
    assert str(ended.value).startswith("StepError: the step function gives a NoneType.")
    worker.sys.stdin.close()


def test_one_process_of_a_machine_compiles_at_a_time(monkeypatch, tmp_path) -> None:
    pytest.importorskip("fcntl")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    order: list[str] = []
    entered = threading.Event()

    def second() -> None:
        entered.set()
        with worker._one_at_a_time():
            order.append("second")

    with worker._one_at_a_time():
        other = threading.Thread(target=second)
        other.start()
        entered.wait()
        other.join(0.2)
        order.append("first")
    other.join()
    assert order == ["first", "second"]
