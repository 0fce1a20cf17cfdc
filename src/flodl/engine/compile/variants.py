"""One program, traced once and compiled with several sets of options; imported only to compile."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import torch
from torch.fx import GraphModule

K = TypeVar("K")
Run = Callable[..., Any]


class Variants(Generic[K]):
    """A backend for `torch.compile` that compiles one program for each set of options; `use` selects one.

    Tracing takes longer than a cache hit, so it is done only once for all of them.
    """

    def __init__(self, options: Mapping[K, Mapping[str, Any]]) -> None:
        self._options = options
        self.use = next(iter(options))

    def __call__(self, program: GraphModule, inputs: Sequence[Any]) -> Run:
        compiled = {key: self._compile(program, inputs, options) for key, options in self._options.items()}
        return lambda *arguments: compiled[self.use](*arguments)

    def select(self, key: K, run: Run) -> Run:
        """Return the function, running the program for one set of options."""

        def run_selected(*arguments: Any) -> Any:
            self.use = key
            return run(*arguments)

        return run_selected

    @staticmethod
    def _compile(program: GraphModule, inputs: Sequence[Any], options: Mapping[str, Any]) -> Run:
        from torch._inductor.compile_fx import compile_fx

        copied = torch.fx.GraphModule(program, copy.deepcopy(program.graph))
        copied.meta = dict(program.meta)
        try:
            return cast(Run, compile_fx(copied, list(inputs), config_patches=dict(options)))
        except Exception as error:
            return _Failed(error)


class _Failed:
    """Takes the place of a program that could not be compiled; the others still run."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __call__(self, *arguments: Any) -> Any:
        raise self._error
