"""A compiler that takes a moment, changes that a CPU sees, and time that goes as a test wants it to."""

from __future__ import annotations

import pytest
import torch

from flodl.engine.compile import policy as compilation
from flodl.engine.compile.passes import fx
from flodl.engine.device import timing


@pytest.fixture
def quick_compiler(monkeypatch: pytest.MonkeyPatch):
    """Trace and guard as torch's compiler does, but run torch's own kernels: nothing is built."""
    real = torch.compile

    def traced(function, **_):
        # One of its own each time, as torch's has: what one has compiled, another does not use.
        return real(function, dynamic=False, backend=lambda program, _: program.forward)

    monkeypatch.setattr(torch, "compile", traced)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def passes_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs be changed that are on a CPU: by their dtype alone, as float32 is on CUDA."""

    def is_single(node: torch.fx.Node) -> bool:
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and value.dtype is torch.float32

    monkeypatch.setattr(fx, "is_cuda_float32", is_single)
    monkeypatch.setattr(fx, "is_cuda", lambda node: isinstance(node.meta.get("val"), torch.Tensor))


class CompiledAlready:
    """Stands for another process that has filled the compiler's cache."""

    done = True
    failure: str | None = None
    layout = None

    def __init__(self, body, micro) -> None:
        self.tune = body.settings.tune

    def close(self) -> None: ...


@pytest.fixture
def compiled_elsewhere(monkeypatch: pytest.MonkeyPatch, quick_compiler: None) -> type[CompiledAlready]:
    """Let `auto` compile at once, as if another process had done the work."""
    monkeypatch.setitem(compilation.COMPILE_AFTER_S, "cpu", 0.0)
    monkeypatch.setattr(compilation, "BackgroundCompilation", CompiledAlready)
    return CompiledAlready


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch):
    """Say how many seconds a window takes on each tier; gives the step to watch."""

    def pace(step, seconds: dict[str, float]) -> None:
        clock = {"s": 0.0}

        def now(device: torch.device) -> float:
            return clock["s"]

        real = step._controller.run

        def run(micro, number: int):
            clock["s"] += seconds[step.tier] if micro.closes else 0.0
            return real(micro, number)

        monkeypatch.setattr(timing, "now_s", now)
        monkeypatch.setattr(step._controller, "_run", run)

    return pace
