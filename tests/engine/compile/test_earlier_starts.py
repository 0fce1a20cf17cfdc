"""A second start of the same program compiles its step at once; what changed in between is noticed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from flodl import FlowBuilder
from flodl.engine import TrainStep
from flodl.engine.batch.signature import signature
from flodl.engine.compile import earlier_starts, policy
from flodl.engine.compile.earlier_starts import EarlierStarts, step_key
from flodl.engine.optimizer.prepare import prepare
from flodl.engine.program.program import StepBody
from flodl.engine.program.runner import Micro, Phase
from flodl.engine.settings import StepSettings

CPU = torch.device("cpu")
BATCH = (torch.ones(8, 4), torch.zeros(8, 4))
FINDINGS = {"modules": ["torch.fx"], "sources": [], "layout": None, "times": {}, "failure": ""}


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def step_of(model: nn.Module, step_fn=mse) -> TrainStep:
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn)


def key_of(model: nn.Module, batch=BATCH, step_fn=mse) -> str | None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    body = StepBody.create(model, optimizer, step_fn, StepSettings(), prepare(optimizer))
    return step_key(body, Micro(batch, signature(batch), Phase.ONLY, len(batch[0])))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(earlier_starts, "notes_folder", lambda: tmp_path)
    return tmp_path


def run(step: TrainStep, paced, *, compiled_s: float = 0.5, steps: int = 30) -> TrainStep:
    paced(step, {"eager": 1.0, "compiled": compiled_s})
    for _ in range(steps):
        step(*BATCH)
    return step


class NeverStarted:
    def __init__(self, body, micro) -> None:
        raise AssertionError("a worker process was started")


def test_the_second_start_compiles_without_waiting_and_without_a_worker(
    folder: Path, compiled_elsewhere, paced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_elsewhere, "findings", FINDINGS)
    assert run(step_of(nn.Linear(4, 4)), paced).tier == "compiled"
    assert len([*folder.glob("*.json")]) == 1
    monkeypatch.setitem(policy.COMPILE_AFTER_S, "cpu", 1e6)
    monkeypatch.setattr(policy, "BackgroundCompilation", NeverStarted)
    assert run(step_of(nn.Linear(4, 4)), paced).tier == "compiled"
    assert run(step_of(nn.Linear(4, 4, bias=False)), paced).tier == "eager"


def test_a_step_that_is_slower_when_compiled_is_not_compiled_at_once_by_the_next_start(
    folder: Path, compiled_elsewhere, paced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_elsewhere, "findings", FINDINGS)
    assert run(step_of(nn.Linear(4, 4)), paced, compiled_s=2.0).tier == "eager"
    assert [*folder.glob("*.json")] == []


def test_a_changed_source_file_is_noticed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    source = tmp_path_factory.mktemp("project") / "model.py"
    source.write_text("x = 1")
    starts = EarlierStarts(CPU)
    starts.add("a", {**FINDINGS, "sources": [str(source), "<string>"]})
    assert starts.find("a") is not None
    source.write_text("x = 22")
    assert starts.find("a") is None


def test_modules_outside_installed_packages_are_sources(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path_factory.mktemp("project") / "own.py"
    source.write_text("x = 1")
    module = ModuleType("own_module_of_this_test")
    module.__file__ = str(source)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    starts = EarlierStarts(CPU)
    starts.add("a", FINDINGS)
    note = starts.find("a")
    assert note is not None
    assert str(source) in note["sources"]
    assert torch.__file__ not in note["sources"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"sources": {}}', '{"modules": [1], "sources": {}, "times": {}}']
)
def test_a_damaged_note_is_ignored(folder: Path, text: str) -> None:
    starts = EarlierStarts(CPU)
    starts.add("a", FINDINGS)
    (path,) = folder.glob("*.json")
    path.write_text(text)
    assert starts.find("a") is None
    assert starts.latest() is None


def test_old_notes_are_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_starts, "MAX_NOTES", 3)
    starts = EarlierStarts(CPU)
    for number in range(5):
        starts.add(str(number), FINDINGS)
        (path,) = folder.glob(f"*-{number}.json")
        os.utime(path, (number, number))
    assert starts.find("0") is None
    assert starts.find("4") is not None


def test_a_folder_that_cannot_be_written_to_loses_only_the_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_starts, "notes_folder", lambda: Path(os.devnull) / "flodl")
    starts = EarlierStarts(CPU)
    starts.add("a", FINDINGS)
    assert starts.latest() is None
    starts.forget("a")


def test_the_folder_is_that_of_the_compiler_and_is_found_without_importing_it() -> None:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    assert earlier_starts.notes_folder.__wrapped__().parent == Path(cache_dir())


def test_the_key_depends_on_code_and_shapes_but_not_on_progress() -> None:
    graph = FlowBuilder(nn.Linear(4, 4)).through(nn.ReLU()).tag("hidden").through(nn.Linear(4, 4)).build()
    step = step_of(graph)
    step(*BATCH)
    key = key_of(graph)
    for _ in range(3):
        graph.record("loss", step(*BATCH))
    graph.flush()
    assert key_of(graph) == key is not None
    assert key_of(graph, (torch.ones(9, 4), torch.zeros(9, 4))) != key
    assert key_of(graph, step_fn=lambda model, x, y: (model(x) - y).abs().mean()) != key
