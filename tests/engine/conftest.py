"""A fast stand-in for the compiler, graph passes on a CPU, and a clock that a test controls."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from flodl.engine.compile import policy as compilation
from flodl.engine.compile.passes import fx
from flodl.engine.device import timing


@pytest.fixture
def quick_compiler(monkeypatch: pytest.MonkeyPatch):
    """Trace and guard like torch's compiler, but run torch's own kernels, so that nothing is built."""
    real = torch.compile

    def traced(function, **_):
        # A new backend each time, like torch's: code compiled by one is not used by another.
        return real(function, dynamic=False, backend=lambda program, _: program.forward)

    monkeypatch.setattr(torch, "compile", traced)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def passes_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply the graph passes on a CPU, to float32 values as on CUDA."""

    def is_float32(node: torch.fx.Node) -> bool:
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and value.dtype is torch.float32

    monkeypatch.setattr(fx, "is_cuda_float32", is_float32)
    monkeypatch.setattr(fx, "is_cuda", lambda node: isinstance(fx.fake_value(node), torch.Tensor))


class CompiledAlready:
    """A stand-in for a worker process that has filled the compiler's cache."""

    done = True
    failure: str | None = None
    layout = None
    findings: ClassVar[dict[str, object]] = {}

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
    """Return a function that sets how many seconds a window takes on each tier."""

    def pace(step, seconds: dict[str, float]) -> None:
        clock = {"s": 0.0}
        begin = timing.WindowTimes.begin_call

        def begin_call(self, tier: str, *, opens: bool) -> None:
            begin(self, tier, opens=opens)
            clock["s"] += seconds[tier] if opens else 0.0

        monkeypatch.setattr(timing, "perf_counter", lambda: clock["s"])
        monkeypatch.setattr(timing.WindowTimes, "begin_call", begin_call)

    return pace
