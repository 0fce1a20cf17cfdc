"""What the worker process does with the step that it receives."""

from __future__ import annotations

import os
import threading

import cloudpickle
import pytest
import torch
from torch import nn

from flodl import FlowBuilder
from flodl.engine.batch.samples import num_samples
from flodl.engine.batch.signature import signature
from flodl.engine.compile import worker
from flodl.engine.compile.background import parse_findings
from flodl.engine.compile.memory_format import LayoutChoice
from flodl.engine.compile.payload import pack_step
from flodl.engine.optimizer.prepare import prepare
from flodl.engine.program.program import StepBody
from flodl.engine.program.runner import Micro, Phase
from flodl.engine.settings import StepSettings

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def sent(step_fn, **settings) -> dict:
    batch = (torch.ones(8, 4), torch.zeros(8, 2))
    return sent_with(nn.Linear(4, 2), batch, step_fn, **settings)


def sent_with(model, batch, step_fn, **settings) -> dict:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    body = StepBody.create(model, optimizer, step_fn, StepSettings(**settings), prepare(optimizer))
    return cloudpickle.loads(pack_step(body, Micro(batch, signature(batch), Phase.ONLY, num_samples(batch))))


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
    assert worker.compile_once(parts, tune=None) == LayoutChoice(None, {})
    assert os.getcwd() == str(tmp_path)
    assert seen == [torch.Size([8, 4])] * 2
    assert not parts["model"].weight.any()


def test_a_graph_that_carries_values_is_compiled_for_its_next_call_too(
    quick_compiler, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = FlowBuilder(nn.Linear(4, 2)).through(lambda x, before=None: x if before is None else x + before)
    model = graph.using(before="last").tag("last").build()
    parts = sent_with(model, (torch.ones(8, 4),), lambda model, x: model(x).square().mean())
    assert worker.compile_once(parts, tune=None) == LayoutChoice(None, {})


def images(model, x):
    print("a model that prints", end="")
    return model(x).square().mean()


def sent_images() -> dict:
    return sent_with(nn.Conv2d(3, 4, 3), (torch.ones(2, 3, 8, 8),), images)


def test_both_layouts_of_images_are_measured(quick_compiler, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker, "TURN_S", 0.0)
    measured = worker.compile_once(sent_images(), tune=None)
    assert set(measured.times_s) == {"as given", "channels last"}
    assert min(measured.times_s.values()) > 0
    assert measured.layout in measured.times_s


def test_layouts_that_cannot_be_measured_are_left_to_the_training(
    quick_compiler, tmp_path, monkeypatch
) -> None:
    def fail(runs):
        raise torch.OutOfMemoryError("no room for two")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker, "pick_fastest", fail)
    assert worker.compile_once(sent_images(), tune=None) == LayoutChoice(None, {})


@pytest.mark.parametrize("fails", ["channels last", "as given"])
def test_a_layout_that_cannot_be_compiled_leaves_the_other(tmp_path, monkeypatch, capfd, fails) -> None:
    def picky(program, inputs, config_patches):
        if config_patches["layout_optimization"] is (fails == "channels last"):
            raise RuntimeError("too large for it")
        return program.forward

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", picky)
    be_the_process_for(sent_images(), monkeypatch)
    worker.main(None, os.getppid())
    worker.sys.stdin.close()
    told = parse_findings(capfd.readouterr().out.encode())
    assert {told["layout"], fails} == {"channels last", "as given"}
    assert told["failure"] == f"{fails} cannot be compiled: too large for it"


def test_if_no_layout_compiles_the_first_error_is_raised(tmp_path, monkeypatch) -> None:
    def never(program, inputs, config_patches):
        raise RuntimeError(f"layout_optimization={config_patches['layout_optimization']}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", never)
    with pytest.raises(RuntimeError, match="layout_optimization=False"):
        worker.compile_once(sent_images(), tune=None)


@pytest.mark.parametrize(("seconds", "layout"), [(1.0, None), (2.0, "as given")])
def test_a_layout_is_reported_if_it_is_clearly_faster(
    quick_compiler, tmp_path, monkeypatch, capfd, seconds, layout
) -> None:
    monkeypatch.chdir(tmp_path)
    times = {"as given": 0.99, "channels last": seconds}
    monkeypatch.setattr(worker, "pick_fastest", lambda runs: LayoutChoice("as given", times))
    be_the_process_for(sent_images(), monkeypatch)
    worker.main(None, os.getppid())
    worker.sys.stdin.close()
    written = capfd.readouterr().out
    assert written.startswith("a model that prints")
    told = parse_findings(written.encode())
    assert (told["layout"], told["times"]) == (layout, times)
    assert "torch._dynamo" in told["modules"]
    assert __file__ in told["sources"]


def be_the_process_for(parts: dict, monkeypatch) -> None:
    class Pipe:
        def __init__(self, *_, **__) -> None: ...

        def recv(self) -> dict:
            return parts

    monkeypatch.setattr(worker, "Connection", Pipe)
    monkeypatch.setattr(worker, "end_with_parent", lambda parent: None)
    monkeypatch.setattr(os, "nice", lambda by: 0)
    monkeypatch.setattr(worker.sys, "stdin", open(os.devnull))  # noqa: SIM115


def test_an_error_is_reported_in_one_line(quick_compiler, monkeypatch) -> None:
    be_the_process_for(sent(lambda model, x, y: None), monkeypatch)
    with pytest.raises(SystemExit) as ended:
        worker.main(None, os.getppid())
    assert str(ended.value).startswith("NoLoss: the step function returned None in place of the loss.")
    worker.sys.stdin.close()


def test_one_process_of_a_machine_compiles_at_a_time(monkeypatch, tmp_path) -> None:
    pytest.importorskip("fcntl")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    order: list[str] = []
    entered = threading.Event()

    def second() -> None:
        entered.set()
        with worker.one_at_a_time():
            order.append("second")

    with worker.one_at_a_time():
        other = threading.Thread(target=second)
        other.start()
        entered.wait()
        other.join(0.2)
        order.append("first")
    other.join()
    assert order == ["first", "second"]
