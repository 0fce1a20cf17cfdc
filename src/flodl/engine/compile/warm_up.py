"""Loads torch's compiler in a thread, so that the promotion of a step does not have to."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress

from flodl.core import log

from .fork_safe_lock import ForkSafeLock

# The modules that torch's compiler imports when it is first used.
COMPILER = (
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch._inductor.compile_fx",
    f"{__package__}.passes.pipeline",
    f"{__package__}.variants",
)
# The interpreter's switch interval meanwhile, a tenth of Python's default.
SWITCH_INTERVAL_S = 5e-4
_lock = ForkSafeLock()


def warm_up(on_cpu: bool, modules: Sequence[str] = (), sources: Sequence[str] = ()) -> None:
    """Do the work that the compiler does once per process.

    This is seconds of pure Python. A short switch interval lets the training thread run in between.
    """
    with _lock.current:
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            load_compiler(on_cpu, modules)
            _read_sources(sources)
        except Exception as error:  # the promotion does the work, or reports the error
            log.debug("cannot warm up the compiler: %s: %s", type(error).__name__, error)
        finally:
            sys.setswitchinterval(interval_s)


def load_compiler(on_cpu: bool, modules: Sequence[str] = ()) -> None:
    """Import the compiler and these modules, and compute what it caches per process."""
    for name in COMPILER:
        importlib.import_module(name)
    for name in modules:
        with suppress(Exception):  # such as code that torch's compiler generated in the worker process
            importlib.import_module(name)
    from torch._inductor.codecache import torch_key

    torch_key()
    if on_cpu:
        from torch._inductor.cpu_vec_isa import valid_vec_isa_list

        valid_vec_isa_list()


def _read_sources(names: Sequence[str]) -> None:
    """Fill torch's cache of function names for the source files that the step runs through."""
    from torch._dynamo.funcname_cache import get_funcname

    for name in names:
        get_funcname(name, 1)
