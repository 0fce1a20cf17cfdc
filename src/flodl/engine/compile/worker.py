"""The worker process that compiles a step during training; started by `background`, never by hand."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from flodl.core import lock

from ..capture.runner import RecordedRunner, Runner
from ..device.error_text import error_summary, source_line
from ..device.timing import now_s
from ..device.torch_flags import set_flags
from ..optimizer.prepare import Readiness
from ..program.program import StepBody
from ..program.runner import EagerRunner, Micro
from .background import FINDINGS_PREFIX, LOAD_FAILED
from .memory_format import Layout, LayoutChoice, candidate_layouts, pick_fastest
from .runner import compile_program

# How long one memory format runs before the other one does. Training uses the same device, which switches
# between the two processes every few milliseconds.
TURN_S = 0.1


def main(tune: str | None, parent: int) -> None:
    """Compile the step received on standard input; the only result is the cache on disk."""
    end_with_parent(parent)
    with suppress(OSError, AttributeError):
        os.nice(10)
    # A pipe to which only the parent process writes.
    try:
        parts = Connection(sys.stdin.fileno(), writable=False).recv()
    except Exception as error:
        sys.exit(f"{LOAD_FAILED}{type(error).__name__}: {error_summary(error)}{source_line(error)}")
    try:
        with one_at_a_time():
            choice = compile_once(parts, tune=tune)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error_summary(error)}")
    print(f"\n{FINDINGS_PREFIX}{json.dumps(_findings(choice))}", flush=True)


def _findings(choice: LayoutChoice) -> dict[str, Any]:
    """Return what the training process should know: what to load early, and which memory format to use."""
    sources = getattr(sys.modules.get("torch._dynamo.funcname_cache"), "cache", ())
    return {
        "modules": [name for name in list(sys.modules) if name.startswith(("torch.", "triton."))],
        "sources": list(sources),
        "layout": choice.layout if choice.is_clearly_faster else None,
        "times": choice.times_s,
        "failure": choice.failure,
    }


def compile_once(parts: dict[str, Any], *, tune: str | None) -> LayoutChoice:
    """Run the step twice on meaningless numbers, so that everything is compiled; then measure it."""
    os.chdir(parts["directory"])
    set_flags(parts["flags"])
    optimizer = torch.optim.SGD(parts["parameters"], lr=0.0)
    readiness = Readiness(False, "nothing is recorded here")
    body = StepBody.create(parts["model"], optimizer, parts["step_fn"], parts["settings"], readiness)
    compiled = compile_program(body, tune=tune, layouts=candidate_layouts(body))
    failed: dict[Layout | None, Exception] = {}
    for layout, variant in compiled.items():
        try:
            for _ in range(2):
                EagerRunner(variant).run_without_update(parts["micro"])
                variant.undo.detach_carried()
        except Exception as error:
            failed[layout] = error
    if not failed:
        return _measure(compiled, parts["micro"])
    return _only_choice([layout for layout in compiled if layout not in failed], failed)


def _only_choice(left: list[Layout | None], failed: dict[Layout | None, Exception]) -> LayoutChoice:
    """Return the memory format that could be compiled; if there is none, raise the first error."""
    (layout, error), *_ = failed.items()
    if not left:
        raise error
    return LayoutChoice(left[0], {}, failure=f"{layout} cannot be compiled: {error_summary(error)}")


def _measure(compiled: dict[Layout | None, StepBody], micro: Micro) -> LayoutChoice:
    """Measure the memory formats in turns; if that fails, the training process measures them itself."""
    if len(compiled) == 1 or not all(map(_has_memory, compiled.values())):
        return LayoutChoice(None, {})
    try:
        return pick_fastest({layout: _timer(body, micro) for layout, body in compiled.items()})
    except Exception:
        return LayoutChoice(None, {})


def _has_memory(body: StepBody) -> bool:
    """Return whether recordings of both formats leave training twice the memory that they take."""
    if body.device.type != "cuda":
        return True
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(body.device)[0] > 6 * torch.cuda.max_memory_allocated(body.device)


def _timer(body: StepBody, micro: Micro) -> Callable[[], float]:
    """Return a function that runs a step for a while and returns its seconds per run.

    On CUDA the step is recorded, as it will be in training: from Python, the time of the host would count.
    """
    runner: Runner = EagerRunner(body)
    if body.device.type == "cuda":
        runner = RecordedRunner(body, update_inside=False)
    runner.learn(micro)

    def seconds(runs: int) -> float:
        started = now_s(body.device)
        for _ in range(runs):
            runner.run_without_update(micro)
            body.undo.detach_carried()
        return (now_s(body.device) - started) / runs

    seconds(1)
    return partial(seconds, max(1, round(TURN_S / seconds(1))))


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let one process of this machine compile at a time; the others then find its work in the cache."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    folder = Path(cache_dir())
    folder.mkdir(parents=True, exist_ok=True)
    with lock.exclusive(folder / "flodl.lock"):
        yield


def end_with_parent(parent: int) -> None:
    """Start a thread that ends this process once its parent is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
