"""The process that compiles a step beside the training; started by `beside`, never by hand."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from .beside import LOADED
from .blame import first_words
from .body import StepBody
from .layout import layouts_for
from .optimizer import Readiness
from .runners import EagerRunner, fused
from .switches import set_switches


def main(tune: str | None) -> None:
    """Compile the step that comes through standard input; the cache on disk is all that stays."""
    _leave_with_the_parent()
    with suppress(OSError, AttributeError):
        os.nice(10)
    # A pipe from the parent process, which nobody else writes to.
    parts = Connection(sys.stdin.fileno(), writable=False).recv()
    try:
        with _one_at_a_time():
            compile_once(parts, tune=tune)
    except Exception as error:
        told = first_words(error)
        sys.exit(f"{type(error).__name__}: {told}")
    # So that the process that trains can load them in time.
    names = [name for name in list(sys.modules) if name.startswith(("torch.", "triton."))]
    print(f"\n{LOADED}{' '.join(names)}", flush=True)


def compile_once(parts: dict[str, Any], *, tune: str | None) -> None:
    """Run the step twice on numbers that mean nothing, so that everything is compiled."""
    os.chdir(parts["directory"])
    set_switches(parts["switches"])
    optimizer = torch.optim.SGD(parts["parameters"], lr=0.0)
    readiness = Readiness(False, "nothing is recorded here")
    body = StepBody(parts["model"], optimizer, parts["step_fn"], parts["settings"], readiness)
    for twin in fused(body, tune=tune, layouts=layouts_for(body)).values():
        for _ in range(2):
            EagerRunner(twin).run_without_update(parts["micro"])


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let one process of this machine compile while others wait, who then find its work in the cache."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    folder = Path(cache_dir())
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "flodl.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _leave_with_the_parent() -> None:
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
