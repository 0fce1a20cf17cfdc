"""Recording device work once and replaying it: the whole step as one launch."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from flodl.core import StepError
from flodl.core.integers import is_integer

from .batch import (
    Signature,
    leaves_of,
    refill,
    same_form,
    shared_places,
    signature,
    static_copy,
    tensors_of,
)
from .blame import first_words, source_line
from .ground import place
from .hygiene import waits_are_errors
from .mailbox import Mailbox, opened
from .recordable import as_if_recorded
from .switches import casting

T = TypeVar("T")
# Torch still knows where these were; they stay, so that nothing else comes to lie there.
_BROKEN: list[torch.cuda.CUDAGraph] = []


class NotCapturable(StepError):
    """The region did something that a recording cannot hold; says what, and on which line."""


@dataclass
class Recording(Generic[T]):
    """A recorded region: its static inputs, what it returned, and the graph that replays it."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    result: T
    # Where one input stands in several places, which a batch must then do as well.
    shared: tuple[int, ...]
    # Says of tensors whether they have the form of the batch that was recorded.
    fits: Callable[..., bool]
    # Where the recording reads addresses instead of having its inputs filled.
    mailbox: Mailbox | None = None

    @property
    def run(self) -> Callable[[], None]:
        """What a graph's own `replay` calls, without the way there."""
        return super(torch.cuda.CUDAGraph, self.graph).replay

    def replay(self, batch: Sequence[Tensor]) -> T:
        """Write the batch into the static inputs and run; the result is overwritten by the next replay."""
        if self.mailbox is not None:
            # What lies at the address of a tensor with a negative bit is not what it says.
            self.mailbox.post(self.run, [leaf.resolve_neg() for leaf in batch])
            return self.result
        refill(self.inputs, batch)
        self.graph.replay()
        return self.result


def record(
    region: Callable[..., T],
    batch: tuple[Any, ...],
    *,
    pool: Any = None,
    stream: torch.cuda.Stream | None = None,
    loss_of: Callable[[T], Tensor] | None = None,
) -> Recording[T]:
    """Record one run of `region(*batch)` without executing it.

    The region must have run before, so that lazy set-up is done. If it cannot be recorded, the
    device is left usable and `NotCapturable` names the line that prevented it. With `loss_of`, the
    recording reads its batch and writes that loss by addresses, where Triton is there to do it.
    """
    if any(isinstance(leaf, np.ndarray) for leaf in leaves_of(batch)):
        raise NotCapturable(
            "the batch holds a NumPy array, which a recording would keep as it is; "
            "give a tensor on the device"
        )
    given = tensors_of(batch)
    if any(leaf.device.type == "cpu" for leaf in given):
        raise NotCapturable(
            "the batch holds a tensor on the CPU, which a recording would keep as it is; "
            "give it on the device"
        )
    static = static_copy(batch)
    inputs = tensors_of(static)
    # A copy is dense; by its address a batch is read as it lies.
    by_address = loss_of is not None and all(leaf.is_contiguous() and not leaf.is_neg() for leaf in given)
    mailbox = opened(inputs) if by_address else None
    graph = torch.cuda.CUDAGraph()
    stream, pool = stream or new_stream(), pool or torch.cuda.graph_pool_handle()
    usual = torch.cuda.current_stream()
    torch.cuda.synchronize()
    try:
        with (
            _no_collector(),
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            if mailbox is not None:
                mailbox.receive()
            result = region(*static)
            if mailbox is not None and loss_of is not None:
                mailbox.give(loss_of(result))
    except Exception as error:
        _BROKEN.append(graph)
        _recover(usual, pool)
        raise NotCapturable(_reason(error)) from error
    return Recording(graph, inputs, result, shared_places(inputs), same_form(given), mailbox)


@contextmanager
def fresh_casts() -> Iterator[None]:
    """Let an autocast around it cast weights anew in a recording, and keep none of what it cast there.

    A copy from before would be read by every replay as it was; one that was recorded means nothing outside.
    """
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


@contextmanager
def _no_collector() -> Iterator[None]:
    """Keep Python from collecting: an old recording that is destroyed within another one breaks it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def rehearse(region: Callable[[], T]) -> T:
    """Run a region for real and refuse any wait for the device, which no recording can hold.

    A recording that breaks in the middle costs more to recover from than a rehearsal that stops.
    """
    try:
        with waits_are_errors():
            return region()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise NotCapturable(_reason(error)) from error


def _recover(usual: torch.cuda.Stream, pool: Any) -> None:
    """Leave the device usable after a broken recording.

    Torch leaves its stream as the current one, and goes on taking memory from its pool, which would keep
    all other memory from being given back. The random generator still believes that it is being recorded;
    an empty recording that ends well sets it free, and keeps the state that earlier recordings draw from.
    """
    torch.cuda.set_stream(usual)
    with suppress(RuntimeError, AttributeError, TypeError):
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
    torch.cuda.synchronize()
    with (
        _no_collector(),
        torch.cuda.graph(torch.cuda.CUDAGraph(), stream=new_stream(), capture_error_mode="thread_local"),
    ):
        torch.zeros(1, device="cuda")
    torch.cuda.synchronize()


def _reason(error: Exception) -> str:
    """Say in one line what prevented a recording, with the user's source line."""
    told = first_words(error)
    return f"{told}{source_line(error)}"


class Captured:
    """A function recorded once per shape of its inputs; made by `capture`."""

    def __init__(self, fn: Callable[..., Any], *, max_captures: int, warmup: int) -> None:
        self._fn = fn
        self._max = max_captures
        self._warmup = warmup
        self._recordings: dict[Signature, Recording[Any]] = {}
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
            return self._called(batch, named)

    def _called(self, batch: tuple[Any, ...], named: dict[str, Any]) -> Any:
        # Named arguments are one more part of the batch, in an order that does not depend on the call.
        given = (*batch, dict(sorted(named.items()))) if named else batch
        fn = _by_name(self._fn) if named else self._fn
        if self._weights is not None and self._weights.have_changed():
            torch.cuda.synchronize()  # replays may be under way
            self._recordings.clear()
            # Of the old pool a part may still be held, and then nothing more is taken from it.
            self._weights, self._pool = None, torch.cuda.graph_pool_handle()
        shape = (bool(named), casting("cuda"), *signature(given))
        recording = self._recordings.get(shape)
        if recording is None:
            if len(self._recordings) >= self._max:
                return fn(*given)
            with torch.cuda.stream(_following(new_stream())), as_if_recorded(torch.device("cuda")):
                for _ in range(self._warmup):
                    fn(*given)
            self._weights = self._weights or _Weights(self._fn)
            with fresh_casts():
                recording = self._recordings[shape] = record(fn, given, pool=self._pool)
        result = recording.replay(tensors_of(given))
        return torch.utils._pytree.tree_map_only(Tensor, torch.clone, result)


class _Weights:
    """Where the parameters and buffers of a module lie, and whether its parts train; nothing of a function.

    They are held, so that no recording reads memory that was given away.

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
        self._tensors = [(tensor, tensor.detach(), place(tensor)) for tensor in tensors]
        self._training = [(module, module.training) for module in modules]

    def have_changed(self) -> bool:
        """Say whether a weight or a part was moved, replaced or switched since."""
        return (
            any(module.training is not trained for module, trained in self._training)
            or any(len(held) != len(was) for held, was in self._parts)
            or any(not all(map(operator.is_, held.values(), was)) for held, was in self._parts)
            or any(place(tensor) != lay for tensor, _, lay in self._tensors)
        )


def _owned(module: torch.nn.Module) -> list[dict[str, Any]]:
    """Give what a module keeps its parts in; a scripted one keeps them elsewhere."""
    kinds = (getattr(module, kind) for kind in ("_parameters", "_buffers", "_modules"))
    return [held for held in kinds if held and isinstance(held, dict)]


def _by_name(fn: Callable[..., T]) -> Callable[..., T]:
    """Let a function take its named arguments as a last one.

    >>> _by_name(dict)([], {"a": 1})
    {'a': 1}
    """
    return lambda *given: fn(*given[:-1], **given[-1])


def capture(fn: Callable[..., Any], *, max_captures: int = 8, warmup: int = 2) -> Captured:
    """Record a fixed-shape region on CUDA and replay it; each new shape is recorded once, up to a limit.

    Meant for regions without lasting effects, such as an evaluation forward:
    `forward = capture(model.eval())`. Without a CUDA device the function is called as it is.
    """
    if not callable(fn):
        raise StepError(f"capture was given {fn!r}. Give a function or a module: capture(model.eval()).")
    for name, value, least in (("max_captures", max_captures, 1), ("warmup", warmup, 0)):
        if not is_integer(value, at_least=least):
            raise StepError(f"capture: {name}={value!r}. Give a whole number from {least} up.")
    return Captured(fn, max_captures=max_captures, warmup=warmup)


def new_stream(device: torch.device | None = None) -> torch.cuda.Stream:
    """Give a stream of its own to record on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _following(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    stream.wait_stream(torch.cuda.current_stream())
    return stream
