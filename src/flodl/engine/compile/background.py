"""Compiling in another process while training goes on: it fills the compiler's cache on disk.

Compiling in a thread of the training process was measured to stall steps by up to 160 ms.
"""

from __future__ import annotations

import copyreg
import importlib
import io
import json
import os
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from flodl.core import log

from ..device.error_text import error_summary
from ..device.torch_flags import current_flags
from ..program.program import StepBody
from ..program.runner import Micro
from .memory_format import LayoutChoice
from .runner import uncompiled

MAX_PAYLOAD_BYTES = 256 << 20
PROGRAM = (
    "import sys; sys.path[:] = {path!r}; sys.argv[:] = {argv!r}; "
    "from flodl.engine.compile.worker import main; main({tune!r}, {parent})"
)
# How the other process begins to say that it never came to compile.
LOAD_FAILED = "not loaded: "
LOAD_FAILED_MESSAGE = "the modules of the step cannot be imported in another process, which would compile it"

# What torch's compiler loads when it is used for the first time.
COMPILER = (
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch._inductor.compile_fx",
    f"{__package__}.passes.pipeline",
    f"{__package__}.variants",
)
# How long another thread waits for its turn meanwhile; Python's own is ten times that.
TURN_S = 5e-4
# Before what the other process says in the end, among what the model may print.
FINDINGS_PREFIX = "flodl compiled: "
_warming = threading.Lock()
# A process takes hundreds of megabytes, and the compiler's cache serves one at a time.
_compiling = threading.Lock()


def _begin_anew() -> None:
    """Let a process that was forked have locks of its own: whoever held them is not in it."""
    global _warming, _compiling
    _warming, _compiling = threading.Lock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


class BackgroundCompilation:
    """One compilation in a process of its own; `done` says when, `failure` why not.

    Where the kernels of matrix products are to be tried out too and that takes longer than the time
    it was given, the process is ended and another compiles without. A process that nobody waits for ends.
    """

    def __init__(self, body: StepBody, micro: Micro) -> None:
        self._job = job = Job(body)
        self._thread: threading.Thread | None = None
        try:
            payload = pack_step(body, micro)
        except Exception as error:
            told = error_summary(error)
            job.failure = f"the step cannot be sent to another process ({told})"
            return
        # The thread holds the job alone, so that this is gone where the step is.
        weakref.finalize(self, job.end)
        self._thread = threading.Thread(target=job.run, args=(payload,), daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why nothing was compiled; None where it went well."""
        return self._job.failure

    @property
    def tune(self) -> str | None:
        """Which kernels were tried out."""
        return self._job.tune

    @property
    def layout(self) -> LayoutChoice | None:
        """The layout that was measured there, where one was clearly faster."""
        return self._job.layout

    @property
    def done(self) -> bool:
        """Whether the compilation has ended, well or not."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """Wait for the end."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """End the process, if it still runs, or never start it."""
        self._job.end()


class Job:
    """What the thread does that starts the process and waits for its end; it mostly sleeps."""

    def __init__(self, body: StepBody) -> None:
        self.failure: str | None = None
        self.tune = body.settings.tune
        self.layout: LayoutChoice | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._budget_s = body.settings.tune_budget_s
        self._on_cpu = body.device.type == "cpu"
        self._told: dict[str, Any] = {}
        self._ended = threading.Event()

    def end(self) -> None:
        """End the process, if there is one, and start none."""
        self._ended.set()
        if self.process is not None:
            _end(self.process)

    def run(self, payload: bytes) -> None:
        """Compile, once no other step of this process is being compiled."""
        turn = _compiling
        while not turn.acquire(timeout=0.1):
            if self._ended.is_set():
                return
        try:
            said = self._said(payload, self._budget_s if self.tune else None)
            if said is None:
                self.tune = None
                said = self._said(payload, None)
        finally:
            turn.release()
        if said:
            unread = said.removeprefix(LOAD_FAILED)
            failed = "torch's compiler failed in another process" if unread == said else LOAD_FAILED_MESSAGE
            self.failure = f"{failed}: {unread[:300]}"
        elif not self._ended.is_set():
            if self._told.get("layout") is not None:
                where, failure = "in the process that compiled it", self._told.get("failure", "")
                self.layout = LayoutChoice(self._told["layout"], self._told["times"], where, failure)
            warm_up(self._on_cpu, self._told.get("modules", ()), self._told.get("sources", ()))

    def _said(self, payload: bytes, limit_s: float | None) -> str | None:
        """Give what a failed process said last, nothing if it went well, None if it took too long."""
        if self._ended.is_set():
            return "it was ended"
        # Modules that are imported there may look at the arguments.
        argv = getattr(sys, "argv", [""])
        program = PROGRAM.format(path=sys.path, argv=argv, tune=self.tune, parent=os.getpid())
        self.process = process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # An interrupt from the terminal is for who trains; the process leaves with its parent anyway.
            start_new_session=True,
        )
        if self._ended.is_set():
            _end(process)
        try:
            told, said = process.communicate(struct.pack("!i", len(payload)) + payload, timeout=limit_s)
        except subprocess.TimeoutExpired:
            _end(process)
            process.communicate()
            return None
        self._told = parse_findings(told)
        lines = said.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        return lines[-1] if process.returncode else ""


def parse_findings(written: bytes) -> dict[str, Any]:
    """Give what the other process told in the end, out of all that it wrote.

    >>> parse_findings(b'epoch 1\\nflodl compiled: {"modules": ["torch.fx"]}\\nbye\\n')
    {'modules': ['torch.fx']}
    >>> parse_findings(b"a model that prints")
    {}
    """
    told = written.decode(errors="replace").rpartition(FINDINGS_PREFIX)[2].partition("\n")[0]
    try:
        found = json.loads(told)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def warm_up(on_cpu: bool, modules: Sequence[str] = (), sources: Sequence[str] = ()) -> None:
    """Do in this thread what the compiler does once in every process, so that promotion need not.

    It is Python for seconds. The thread that trains gets its turn soon, so that steps go on meanwhile.
    """
    with _warming:
        patience_s = sys.getswitchinterval()
        sys.setswitchinterval(TURN_S)
        try:
            load_compiler(on_cpu, modules)
            _read_sources(sources)
        except Exception as error:  # promotion will do it, or say what is wrong
            log.debug("the compiler is not ready yet: %s: %s", type(error).__name__, error)
        finally:
            sys.setswitchinterval(patience_s)


def load_compiler(on_cpu: bool, modules: Sequence[str] = ()) -> None:
    for name in COMPILER:
        importlib.import_module(name)
    for name in modules:
        with suppress(Exception):  # such as code that torch's compiler wrote for the other process
            importlib.import_module(name)
    from torch._inductor.codecache import torch_key

    torch_key()
    if on_cpu:
        from torch._inductor.cpu_vec_isa import valid_vec_isa_list

        valid_vec_isa_list()


def _read_sources(names: Sequence[str]) -> None:
    """Let torch read the sources that the step runs through, in which it looks up the name of every line."""
    from torch._dynamo.funcname_cache import get_funcname

    for name in names:
        get_funcname(name, 1)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()


def pack_step(body: StepBody, micro: Micro) -> bytes:
    """Give the step as bytes: code and shapes; tensors travel without their numbers."""
    import cloudpickle  # type: ignore[import-untyped]

    class Packer(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if type(obj) is Tensor or type(obj) is nn.Parameter:
                return _blank, _outline(obj)
            if isinstance(obj, nn.Module) and is_parametrized(obj):
                # Torch refuses to pickle it because it made the class of it on the spot; that is sent along.
                return copyreg.__newobj__, (type(obj),), vars(obj)  # type: ignore[attr-defined]
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    parts = {
        "model": body.model,
        "step_fn": uncompiled(body.step_fn),
        "settings": body.settings,
        "parameters": body.parameters,
        "micro": micro,
        "directory": os.getcwd(),
        "switches": current_flags(),
    }
    Packer(buffer).dump(parts)
    if buffer.tell() > MAX_PAYLOAD_BYTES:
        raise ValueError(f"it holds {buffer.tell() >> 20} MiB beside its tensors")
    return buffer.getvalue()


def _outline(tensor: Tensor) -> tuple[Any, ...]:
    return (
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.dtype,
        str(tensor.device),
        tensor.requires_grad and tensor.is_leaf,
        type(tensor) is nn.Parameter,
    )


def _blank(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    learns: bool,
    is_parameter: bool,
) -> Tensor:
    """Make a tensor of zeros with these properties."""
    made = torch.empty_strided(shape, stride, dtype=dtype, device=device).zero_()
    return nn.Parameter(made, requires_grad=learns) if is_parameter else made.requires_grad_(learns)
