"""`capture`: any function or module as a CUDA graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from flodl.core import StepError
from flodl.core.integers import as_integer, is_integer
from flodl.observe import LastValues

from ..batch.signature import Signature, signature
from ..batch.tree import tensors_of
from ..device.capturing import report_capturing
from ..device.tensors import data_ptr
from ..device.torch_flags import autocast_state
from ..state.reachable import Reachable
from .recording import Recording, T, fresh_casts, new_stream, record
from .stored_values import StoredValues


class Captured:
    """A function recorded once per signature of its inputs; created by `capture`."""

    def __init__(self, fn: Callable[..., Any], *, max_captures: int, warmup: int) -> None:
        self._fn = fn
        self._max = max_captures
        self._warmup = warmup
        self._recordings: dict[Signature, tuple[Recording[Any], StoredValues]] = {}
        self._weights: _Weights | None = None
        self._pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None

    @property
    def captures(self) -> int:
        """How many shapes were recorded."""
        return len(self._recordings)

    def __call__(self, *batch: Any, **named: Any) -> Any:
        if self._pool is None:
            return self._fn(*batch, **named)
        devices = [leaf.device for leaf in tensors_of((batch, named)) if leaf.is_cuda]
        with torch.cuda.device(devices[0]) if devices else nullcontext():
            return self._replay(batch, named)

    def _replay(self, batch: tuple[Any, ...], named: dict[str, Any]) -> Any:
        # Keyword arguments become one more item of the batch, in an order that does not depend on the call.
        given = (*batch, dict(sorted(named.items()))) if named else batch
        fn = _by_name(self._fn) if named else self._fn
        if self._weights is not None and self._weights.have_changed():
            torch.cuda.synchronize()  # replays may still run
            self._recordings.clear()
            # Part of the old pool may still be in use, and then torch allocates nothing more from it.
            self._weights, self._pool = None, torch.cuda.graph_pool_handle()
        key = (bool(named), autocast_state("cuda"), *signature(given))
        recorded = self._recordings.get(key)
        if recorded is None:
            if len(self._recordings) >= self._max:
                return fn(*given)
            with torch.cuda.stream(_following(new_stream())), report_capturing(torch.device("cuda")):
                for _ in range(self._warmup):
                    fn(*given)
            self._weights = self._weights or _Weights(self._fn)
            stored = StoredValues(one for one in Reachable([self._fn]) if isinstance(one, LastValues))
            with fresh_casts():
                recording = record(stored.watching(fn), given, pool=self._pool)
            recorded = self._recordings[key] = recording, stored
        recording, stored = recorded
        result = recording.replay(tensors_of(given))
        stored.show()
        return torch.utils._pytree.tree_map_only(Tensor, torch.clone, result)


class _Weights:
    """The parameters, buffers and training modes of a module; nothing for a plain function.

    The tensors are kept alive, so that no recording reads freed memory.

    >>> model = torch.nn.Linear(2, 1)
    >>> [_Weights(fn).have_changed() for fn in (model, model.forward, print)]
    [False, False, False]
    >>> weights = _Weights(model)
    >>> model.half() and weights.have_changed(), _Weights(model.eval()).have_changed()
    (True, False)
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    >>> weights = _Weights(model)
    >>> model[0] = torch.nn.Linear(2, 1)
    >>> weights.have_changed()
    True
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        owner = fn if isinstance(fn, torch.nn.Module) else getattr(fn, "__self__", None)
        modules = [*owner.modules()] if isinstance(owner, torch.nn.Module) else []
        owned = [held for module in modules for held in _owned(module)]
        self._parts = [(held, [*held.values()]) for held in owned]
        tensors = [part for held in owned for part in held.values() if isinstance(part, Tensor)]
        self._tensors = [(tensor, tensor.detach(), data_ptr(tensor)) for tensor in tensors]
        self._training = [(module, module.training) for module in modules]

    def have_changed(self) -> bool:
        """Return whether a tensor or submodule was moved, replaced or switched since."""
        return (
            any(module.training is not trained for module, trained in self._training)
            or any(len(held) != len(was) for held, was in self._parts)
            or any(not all(map(operator.is_, held.values(), was)) for held, was in self._parts)
            or any(data_ptr(tensor) != pointer for tensor, _, pointer in self._tensors)
        )


def _owned(module: torch.nn.Module) -> list[dict[str, Any]]:
    """Return the dictionaries in which a module keeps its members; a scripted module has none."""
    kinds = (getattr(module, kind) for kind in ("_parameters", "_buffers", "_modules"))
    return [held for held in kinds if held and isinstance(held, dict)]


def _by_name(fn: Callable[..., T]) -> Callable[..., T]:
    """Let a function take its keyword arguments as a dictionary in last position.

    >>> _by_name(dict)([], {"a": 1})
    {'a': 1}
    """
    return lambda *given: fn(*given[:-1], **given[-1])


def capture(fn: Callable[..., Any], *, max_captures: int = 8, warmup: int = 2) -> Captured:
    """Record a region on CUDA and replay it; each new signature is recorded once, up to a limit.

    It is meant for regions without side effects, such as an evaluation forward:
    `forward = capture(model.eval())`. Without a CUDA device the function is called directly.
    """
    if not callable(fn):
        raise StepError(f"capture got {fn!r}. Pass a function or a module: capture(model.eval()).")
    max_captures, warmup = as_integer(max_captures), as_integer(warmup)
    for name, value, least in (("max_captures", max_captures, 1), ("warmup", warmup, 0)):
        if not is_integer(value, at_least=least):
            raise StepError(f"capture: {name}={value!r}. Pass an integer of at least {least}.")
    return Captured(fn, max_captures=max_captures, warmup=warmup)


def _following(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    stream.wait_stream(torch.cuda.current_stream())
    return stream
