"""The process that compiles a step beside the training; started by `beside`, never by hand."""

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

# How long a layout runs before it is the other's turn. The training runs on the same device meanwhile, which
# changes between the two every few milliseconds.
TURN_S = 0.1


def main(tune: str | None, parent: int) -> None:
    """Compile the step that comes through standard input; the cache on disk is all that stays."""
    _leave_with_the_parent(parent)
    with suppress(OSError, AttributeError):
        os.nice(10)
    # A pipe from the parent process, which nobody else writes to.
    try:
        parts = Connection(sys.stdin.fileno(), writable=False).recv()
    except Exception as error:
        sys.exit(f"{LOAD_FAILED}{type(error).__name__}: {error_summary(error)}{source_line(error)}")
    try:
        with _one_at_a_time():
            measured = compile_once(parts, tune=tune)
    except Exception as error:
        told = error_summary(error)
        sys.exit(f"{type(error).__name__}: {told}")
    print(f"\n{FINDINGS_PREFIX}{json.dumps(_findings(measured))}", flush=True)


def _findings(measured: LayoutChoice) -> dict[str, Any]:
    """Give what the process that trains should know: what it can load in time, and which layout to load."""
    sources = getattr(sys.modules.get("torch._dynamo.funcname_cache"), "cache", ())
    return {
        "modules": [name for name in list(sys.modules) if name.startswith(("torch.", "triton."))],
        "sources": list(sources),
        "layout": measured.layout if measured.is_clearly_faster else None,
        "times": measured.times_s,
        "failure": measured.failure,
    }


def compile_once(parts: dict[str, Any], *, tune: str | None) -> LayoutChoice:
    """Run the step twice on numbers that mean nothing, so that everything is compiled; then measure it."""
    os.chdir(parts["directory"])
    set_flags(parts["switches"])
    optimizer = torch.optim.SGD(parts["parameters"], lr=0.0)
    readiness = Readiness(False, "nothing is recorded here")
    body = StepBody(parts["model"], optimizer, parts["step_fn"], parts["settings"], readiness)
    twins = compile_program(body, tune=tune, layouts=candidate_layouts(body))
    failed: dict[Layout | None, Exception] = {}
    for layout, twin in twins.items():
        try:
            for _ in range(2):
                EagerRunner(twin).run_without_update(parts["micro"])
        except Exception as error:
            failed[layout] = error
    if not failed:
        return _measured(twins, parts["micro"])
    return _the_only_one([layout for layout in twins if layout not in failed], failed)


def _the_only_one(left: list[Layout | None], failed: dict[Layout | None, Exception]) -> LayoutChoice:
    """Give the layout that could be compiled; where there is none, what was wrong with the first."""
    (layout, error), *_ = failed.items()
    if not left:
        raise error
    return LayoutChoice(left[0], {}, failure=f"{layout} cannot be compiled: {error_summary(error)}")


def _measured(twins: dict[Layout | None, StepBody], micro: Micro) -> LayoutChoice:
    """Let the layouts take turns; where they cannot be measured, the process that trains has to."""
    if len(twins) == 1 or not all(map(_has_room, twins.values())):
        return LayoutChoice(None, {})
    try:
        return pick_fastest({layout: _turn(twin, micro) for layout, twin in twins.items()})
    except Exception:
        return LayoutChoice(None, {})


def _has_room(body: StepBody) -> bool:
    """Say whether recordings of both leave the training twice the memory that they take."""
    if body.device.type != "cuda":
        return True
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(body.device)[0] > 6 * torch.cuda.max_memory_allocated(body.device)


def _turn(body: StepBody, micro: Micro) -> Callable[[], float]:
    """Give what runs a step for a while and tells its seconds.

    On CUDA it is recorded, as it will be in the training: from Python, what the host does would be measured.
    """
    runner: Runner = EagerRunner(body)
    if body.device.type == "cuda":
        runner = RecordedRunner(body, update_inside=False)
    runner.learn(micro)

    def seconds(runs: int) -> float:
        started = now_s(body.device)
        for _ in range(runs):
            runner.run_without_update(micro)
        return (now_s(body.device) - started) / runs

    seconds(1)
    return partial(seconds, max(1, round(TURN_S / seconds(1))))


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let one process of this machine compile while others wait, who then find its work in the cache."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    folder = Path(cache_dir())
    folder.mkdir(parents=True, exist_ok=True)
    with lock.exclusive(folder / "flodl.lock"):
        yield


def _leave_with_the_parent(parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
