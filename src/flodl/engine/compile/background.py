"""Compiles a step in a worker process during training, which fills the compiler's cache on disk.

Compiling in a thread of the training process was measured to stall steps by up to 160 ms.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from ..device.error_text import error_summary
from ..program.program import StepBody
from ..program.runner import Micro
from .fork_safe_lock import ForkSafeLock
from .memory_format import LayoutChoice
from .payload import pack_step
from .warm_up import warm_up

PROGRAM = (
    "import sys; sys.path[:] = {path!r}; sys.argv[:] = {argv!r}; "
    "from flodl.engine.compile.worker import main; main({tune!r}, {parent})"
)
# How an error begins that the worker process reports if it could not load the step.
LOAD_FAILED = "not loaded: "
LOAD_FAILED_MESSAGE = "the modules of the step cannot be imported in the worker process that would compile it"
# Marks the findings of the worker process in its output, to which the model may print too.
FINDINGS_PREFIX = "flodl compiled: "
# A worker process takes hundreds of megabytes, and the compiler's cache serves one at a time.
_one_worker = ForkSafeLock()


class BackgroundCompilation:
    """One compilation in a worker process; `done` says when it has ended, `failure` why it failed.

    If autotuning the matmul kernels takes longer than its budget, the process is ended and a second one
    compiles without it. A process without a waiting parent ends by itself.
    """

    def __init__(self, body: StepBody, micro: Micro) -> None:
        self._job = job = Job(body)
        self._thread: threading.Thread | None = None
        try:
            payload = pack_step(body, micro)
        except Exception as error:
            job.failure = f"the step cannot be sent to another process ({error_summary(error)})"
            return
        # The thread refers to the job only, so that this object is collected together with the step.
        weakref.finalize(self, job.end)
        self._thread = threading.Thread(target=job.run, args=(payload,), daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why nothing was compiled; None on success."""
        return self._job.failure

    @property
    def tune(self) -> str | None:
        """Which kernels were autotuned."""
        return self._job.tune

    @property
    def layout(self) -> LayoutChoice | None:
        """The memory format measured in the worker process, if one was clearly faster."""
        return self._job.layout

    @property
    def findings(self) -> Mapping[str, Any]:
        """What the worker process reported at its end."""
        return self._job.findings

    @property
    def done(self) -> bool:
        """Whether the compilation has ended, successfully or not."""
        return self._thread is None or not self._thread.is_alive()

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The worker process, once it was started."""
        return self._job.process

    def wait(self) -> None:
        """Wait until the compilation has ended."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """End the worker process, or do not start it."""
        self._job.end()


class Job:
    """The work of the thread that starts the worker process and waits for it; it mostly sleeps."""

    def __init__(self, body: StepBody) -> None:
        self.failure: str | None = None
        self.tune = body.settings.tune
        self.layout: LayoutChoice | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._budget_s = body.settings.tune_budget_s
        self._on_cpu = body.device.type == "cpu"
        self.findings: dict[str, Any] = {}
        self._ended = threading.Event()

    def end(self) -> None:
        """End the worker process, if there is one, and start none."""
        self._ended.set()
        if self.process is not None:
            _kill(self.process)

    def run(self, payload: bytes) -> None:
        """Compile, once no other step of this process is being compiled."""
        lock = _one_worker.current
        while not lock.acquire(timeout=0.1):
            if self._ended.is_set():
                return
        try:
            error = self._run_worker(payload, self._budget_s if self.tune else None)
            if error is None:
                self.tune = None
                error = self._run_worker(payload, None)
        finally:
            lock.release()
        if error:
            cause = error.removeprefix(LOAD_FAILED)
            failed = "torch's compiler failed in another process" if cause == error else LOAD_FAILED_MESSAGE
            self.failure = f"{failed}: {cause[:300]}"
        elif not self._ended.is_set():
            findings = self.findings
            self.layout = layout_of(findings, "in the process that compiled it")
            warm_up(self._on_cpu, findings.get("modules", ()), findings.get("sources", ()))

    def _run_worker(self, payload: bytes, limit_s: float | None) -> str | None:
        """Return the error message of the worker process, "" on success, None if it took too long."""
        if self._ended.is_set():
            return "it was ended"
        # Modules that the worker imports may read the arguments.
        argv = getattr(sys, "argv", [""])
        program = PROGRAM.format(path=sys.path, argv=argv, tune=self.tune, parent=os.getpid())
        self.process = process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C in the terminal is for the training; the worker ends together with its parent anyway.
            start_new_session=True,
        )
        if self._ended.is_set():
            _kill(process)
        try:
            output, errors = process.communicate(struct.pack("!i", len(payload)) + payload, timeout=limit_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.communicate()
            return None
        self.findings = parse_findings(output)
        lines = errors.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        return lines[-1] if process.returncode else ""


def layout_of(findings: Mapping[str, Any], where: str) -> LayoutChoice | None:
    """Return the memory format that was clearly faster, if there is one."""
    if findings.get("layout") is None:
        return None
    return LayoutChoice(findings["layout"], findings["times"], where, findings.get("failure", ""))


def parse_findings(output: bytes) -> dict[str, Any]:
    """Return the findings that the worker process wrote at its end, from all of its output.

    >>> parse_findings(b'epoch 1\\nflodl compiled: {"modules": ["torch.fx"]}\\nbye\\n')
    {'modules': ['torch.fx']}
    >>> parse_findings(b"a model that prints")
    {}
    """
    line = output.decode(errors="replace").rpartition(FINDINGS_PREFIX)[2].partition("\n")[0]
    try:
        findings = json.loads(line)
    except ValueError:
        return {}
    return findings if isinstance(findings, dict) else {}


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
