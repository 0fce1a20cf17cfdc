"""Measure a summary: run any model a few times, and look at each of its modules."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from flodl.core import FlodlError, InputError
from flodl.core.formats import a_type
from flodl.core.integers import is_index

from ..plan.error_path import describe_value, one_line_repr, path_of_error, set_path
from ..plan.memory import tensors
from .clock import Clock, CudaClock, HostClock
from .flops import flop_counter
from .preserve import preserve_state
from .summary import LayerRow, Summary


def summary(
    model: nn.Module, /, *inputs: Any, depth: int | None = 3, repeats: int = 3, **named: Any
) -> Summary:
    """Run a model on example inputs, and return its modules with shapes, parameters, FLOPs and times.

    The inputs are those of the model's forward, and are moved to its device. `depth` is how deep modules are
    listed, None for all. The model does not change: buffers, carried values and the RNG state are restored.
    Only the forward is measured, without gradients and in the model's current mode.

    >>> print(summary(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.zeros(2, 4))["0"].flops)
    128
    """
    _check(model, inputs, named, depth, repeats)
    device = _device(model, (inputs, named))
    args, kwargs = pytree.tree_map_only(Tensor, lambda one: one.to(device), (inputs, named))
    clock: Clock = CudaClock(device) if device.type == "cuda" else HostClock(device)
    watch = _Watch(model)
    with preserve_state(model, args, kwargs), torch.no_grad():
        with _without_fast_path(), flop_counter() as counter:
            with watch.shapes_and_flops(counter.get_total_flops), watch.naming_errors():
                model(*_copied(args), **_copied(kwargs))
            total_flops = counter.get_total_flops()
        runs = []
        for _ in range(repeats):
            with watch.times(clock):
                model(*_copied(args), **_copied(kwargs))
            clock.wait()
            runs.append(watch.seconds(clock))
    runs.sort(key=lambda run: run[id(model)])
    kept = runs[: (len(runs) + 1) // 2]
    seconds = {key: statistics.fmean(run.get(key, 0.0) for run in kept) for key in watch.seen}
    return _summary(model, watch, seconds, total_flops, depth, device)


def _check(
    model: Any, inputs: tuple[Any, ...], named: dict[str, Any], depth: int | None, repeats: int
) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"summary got {a_type(model)}. Pass the model first: summary(model, x).")
    if not inputs and not named:
        raise InputError("summary has no input to run the model on. Pass an example: summary(model, x).")
    if not is_index(repeats, at_least=1):
        raise InputError(f"summary got repeats={repeats!r:.60}. Pass an integer of at least 1.")
    if depth is not None and not is_index(depth, at_least=1):
        raise InputError(f"summary got depth={depth!r:.60}. Pass an integer of at least 1, or None for all.")
    if any(is_lazy(value) for value in [*model.parameters(), *model.buffers()]):
        raise InputError("some parameters have no shape yet. Call the model once, then summarize it.")


@dataclass
class _Seen:
    """What was seen of one module in a forward."""

    calls: int = 0
    flops: int = 0
    input_shape: str = ""
    output_shape: str = ""
    began: list[Any] = field(default_factory=list)
    spans: list[tuple[Any, Any]] = field(default_factory=list)


class _Watch:
    """Hooks on every module of a model."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules = list(model.modules())
        # The calls that have begun and not returned, with what each module got.
        self._open: list[tuple[nn.Module, Any]] = []
        self.seen = {id(module): _Seen() for module in self._modules}

    @contextmanager
    def shapes_and_flops(self, total: Callable[[], int]) -> Iterator[None]:
        """Note shapes and FLOPs of the calls inside the block."""

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            seen = self.seen[id(module)]
            seen.input_shape = seen.input_shape or _shapes((args, kwargs))
            seen.began.append(total())
            self._open.append((module, (*args, *kwargs.values())))

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            seen = self.seen[id(module)]
            seen.calls += 1
            while self._open.pop()[0] is not module:
                pass  # a call whose error was handled
            seen.flops += total() - seen.began.pop()
            seen.output_shape = seen.output_shape or _shapes(output)

        with self._hooks(before, after):
            yield

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Add the path of the innermost module whose call fails, unless a graph has added a longer one."""
        try:
            yield
        except Exception as error:
            if self._open and not isinstance(error, FlodlError):
                module, given = self._open[-1]
                path = next((path for path, one in self._model.named_modules() if one is module), "")
                known = path_of_error(error)[0]
                if path.startswith(known and f"{known}.") and path:
                    set_path(error, path, f"{one_line_repr(module)}, given {_described(given)}")
            raise

    @contextmanager
    def times(self, clock: Clock) -> Iterator[None]:
        """Note the times of the calls inside the block."""
        for seen in self.seen.values():
            seen.began, seen.spans = [], []

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.seen[id(module)].began.append(clock.pause())
            clock.resume()

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            seen = self.seen[id(module)]
            seen.spans.append((seen.began.pop(), clock.pause()))
            clock.resume()

        with self._hooks(before, after):
            yield

    def seconds(self, clock: Clock) -> dict[int, float]:
        """Return the time of each module in the last run."""
        return {
            key: sum(clock.seconds(start, end) for start, end in seen.spans)
            for key, seen in self.seen.items()
        }

    @contextmanager
    def _hooks(self, before: Callable[..., None], after: Callable[..., None]) -> Iterator[None]:
        with ExitStack() as stack:
            for module in self._modules:
                stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(after, with_kwargs=True).remove)
            yield


def _summary(
    model: nn.Module,
    watch: _Watch,
    seconds: dict[int, float],
    flops: int,
    depth: int | None,
    device: torch.device,
) -> Summary:
    rows = []
    for path, module in model.named_modules():
        if not path or (depth is not None and path.count(".") >= depth):
            continue
        seen, own = watch.seen[id(module)], [*module.parameters()]
        rows.append(
            LayerRow(
                path,
                type(module).__name__,
                seen.input_shape,
                seen.output_shape,
                sum(parameter.numel() for parameter in own),
                sum(parameter.numel() for parameter in own if parameter.requires_grad),
                seen.flops,
                seconds[id(module)],
                seen.calls,
            )
        )
    parameters = [*model.parameters()]
    return Summary(
        type(model).__name__,
        tuple(rows),
        sum(parameter.numel() for parameter in parameters),
        sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        sum(parameter.nbytes for parameter in parameters),
        flops,
        seconds[id(model)],
        torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
    )


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """Run attention as separate operations: the FLOPs of torch's fused inference kernels are not counted."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _shapes(value: Any) -> str:
    """Return the shapes of the tensors in a value, the first two of them."""
    found = [" × ".join(map(str, tensor.shape)) or "scalar" for tensor in tensors(value)]
    return ", ".join(found[:2]) + (", …" if len(found) > 2 else "")


def _described(given: tuple[Any, ...]) -> str:
    return ", ".join(map(describe_value, given)) or "nothing"


def _copied(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, torch.clone, value)


def _device(model: nn.Module, inputs: Any) -> torch.device:
    values = [*model.parameters(), *model.buffers(), *tensors(inputs)]
    return values[0].device if values else torch.device("cpu")
