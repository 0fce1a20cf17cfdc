"""One program, traced once and compiled in several ways; imported only when something is compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import torch
from torch.fx import GraphModule

K = TypeVar("K")
Run = Callable[..., Any]


class Variants(Generic[K]):
    """A backend for `torch.compile` that makes one program for each set of options; `use` says which runs.

    Tracing takes longer than finding a program in the cache, so it is not done for each of them.
    """

    def __init__(self, options: Mapping[K, Mapping[str, Any]]) -> None:
        self._options = options
        self.use = next(iter(options))

    def __call__(self, program: GraphModule, inputs: Sequence[Any]) -> Run:
        made = {key: self._made(program, inputs, options) for key, options in self._options.items()}
        return lambda *given: made[self.use](*given)

    def using(self, key: K, run: Run) -> Run:
        """Give the same function with one of the programs behind it."""

        def run_so(*given: Any) -> Any:
            self.use = key
            return run(*given)

        return run_so

    @staticmethod
    def _made(program: GraphModule, inputs: Sequence[Any], options: Mapping[str, Any]) -> Run:
        from torch._inductor.compile_fx import compile_fx

        copied = torch.fx.GraphModule(program, copy.deepcopy(program.graph))
        copied.meta = dict(program.meta)
        try:
            return cast(Run, compile_fx(copied, list(inputs), config_patches=dict(options)))
        except Exception as error:
            return _Failed(error)


class _Failed:
    """Stands for a program that could not be made; the others are as good as without it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __call__(self, *given: Any) -> Any:
        raise self._error
