"""What a graph checks in its first calls, because it cannot be known when the graph is built."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from .control.control import Control
from .plan.functions import check_copied_functions, check_functions
from .plan.spec import Spec

# Calls that are checked for writes in place, if the data decide what runs; otherwise it is one.
_CALLS_TO_CHECK = 32


class Original:
    """Refers to the graph that a copy in the same process was made from; empty after pickling."""

    def __init__(self, graph: nn.Module | None = None) -> None:
        self._graph = None if graph is None else weakref.ref(graph)

    @property
    def is_known(self) -> bool:
        """Whether the copy was made in this process."""
        return self._graph is not None

    def __call__(self) -> nn.Module | None:
        return None if self._graph is None else self._graph()

    def __deepcopy__(self, memo: dict[int, Any]) -> Original:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Original, ()


class FirstCalls:
    """Raise if a node overwrites a value that is read later, or a function uses modules outside the graph.

    The first calls in training and in evaluation are checked: dropout, for example, writes in training only.
    """

    def __init__(
        self, graph: nn.Module, spec: Spec, initial: Mapping[str, Any], *, original: Original | None = None
    ) -> None:
        self._spec = spec
        self._initial = initial
        # The functions of a copy are those of the original, and may use the modules of that.
        self.original = original
        self._are_functions_checked = original is not None
        self.restart(graph)

    def restart(self, graph: nn.Module) -> None:
        """Check again, because modules were replaced."""
        is_decided_by_data = any(map(_decides, graph.modules()))
        self._calls_left = dict.fromkeys((True, False), _CALLS_TO_CHECK if is_decided_by_data else 1)
        self.are_due = {True: True, False: True}

    def check(self, graph: nn.Module) -> bool:
        """Check the functions, and return whether to watch this call for in-place writes.

        Without gradients, a function may use modules that are not part of the graph.
        """
        if torch.compiler.is_compiling():
            return False
        if self.original is not None:
            self._check_copy(graph, self.original)
            self.original = None
        if torch.is_inference_mode_enabled():
            return False
        if not self._are_functions_checked and torch.is_grad_enabled():
            check_functions(graph, self._functions(graph))
            self._are_functions_checked = True
        left = self._calls_left[graph.training]
        self._calls_left[graph.training] = max(0, left - 1)
        self.are_due[graph.training] = left > 1 or not self._are_functions_checked
        return left > 0

    def _check_copy(self, graph: nn.Module, original: Original) -> None:
        if (there := original()) is not None:
            check_copied_functions(graph, there, self._functions(graph))
        elif original.is_known:
            # The original is gone: what its functions use is checked like that of any graph.
            self._are_functions_checked = False

    def _functions(self, graph: nn.Module) -> dict[str, Callable[..., Any]]:
        """Return the functions of nodes, of parts of control nodes, and of initial values, by path."""
        found = {node.key: node.function for node in self._spec.nodes if node.function is not None}
        for key, module in graph._modules.items():
            if isinstance(module, Control):
                found |= {f"{key}.{name}": part for name, part in module.parts().items()}
        found |= {f"state_{tag}": value for tag, value in self._initial.items() if callable(value)}
        return {path: part for path, part in found.items() if not isinstance(part, nn.Module)}


def _decides(module: nn.Module) -> bool:
    return isinstance(module, Control) and module.kind in ("loop", "switch")
