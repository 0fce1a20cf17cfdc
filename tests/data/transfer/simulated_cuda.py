"""A simulated CUDA device that computes on the CPU immediately and detects data races between streams.

Every stream, and the host, has a vector clock: how many operations of each other stream are certainly done
when its next operation runs. Two operations on the same memory, one of which writes, must be ordered by these
clocks. Timing makes no difference: an operation that nobody waited for counts as not done.

Memory behaves as in torch's allocator. Memory that the host frees returns at once to the stream on which it
was allocated, and any later allocation there may get it, whatever its size. So its first write must come
after every use of everything that was freed there before.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Clock = dict[int, int]  # for each stream number, how many of its operations are certainly done

DEVICE = torch.device("cuda", 0)
_HOST = -1
_DEFAULT = 0
_BYTES = 2**30


def _merge(clock: Clock, other: Clock) -> None:
    for line, tick in other.items():
        if clock.get(line, 0) < tick:
            clock[line] = tick


def _not_in(clock: Clock, wanted: Clock) -> list[int]:
    return [line for line, tick in wanted.items() if clock.get(line, 0) < tick]


@dataclass
class _Block:
    """Device memory or pinned host memory: its last users, and its previous owner."""

    home: int
    before: Clock = field(default_factory=dict)
    writes: Clock = field(default_factory=dict)
    reads: Clock = field(default_factory=dict)
    kept_for: set[int] = field(default_factory=set)


class Event:
    """A point in a stream; waiting for an unrecorded event does nothing."""

    def __init__(self, cuda: SimulatedCuda) -> None:
        self._cuda, self.clock = cuda, Clock()

    def record(self, stream: Stream) -> None:
        self.clock = dict(self._cuda.clocks[stream.number])

    def wait(self, stream: Stream) -> None:
        _merge(self._cuda.clocks[stream.number], self.clock)

    def synchronize(self) -> None:
        _merge(self._cuda.clocks[_HOST], self.clock)


class Stream:
    """A stream; two objects with the same number are one stream, as in torch's pool."""

    def __init__(self, cuda: SimulatedCuda, number: int) -> None:
        self._cuda, self.number, self.device = cuda, number, DEVICE

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self) -> Event:
        event = Event(self._cuda)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def __enter__(self) -> Stream:
        self._cuda.entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._cuda.entered.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.number == other.number

    def __hash__(self) -> int:
        return hash(self.number)


class SimulatedCuda:
    """The device; inside `with`, torch calls of this thread that name it or its tensors run on it.

    `races` lists each operation that is not ordered after a conflicting one, with the conflicting ones.
    """

    def __init__(self, *, num_streams: int = 32) -> None:
        self.races: list[str] = []
        self.clocks: dict[int, Clock] = defaultdict(dict)
        self._let_go: dict[int, Clock] = defaultdict(dict)
        self._blocks: dict[int, _Block] = {}
        self._num_streams, self._streams_made = num_streams, 0
        self._thread = threading.local()

    def replace(self, monkeypatch: Any) -> None:
        """Replace torch's CUDA functions with this device."""
        for name, value in {
            "Stream": self._new_stream,
            "Event": lambda: Event(self),
            "current_stream": lambda device=None: self.current,
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: DEVICE.index,
            "mem_get_info": lambda device: (_BYTES, _BYTES),
            "memory_reserved": lambda device: 0,
            "memory_allocated": lambda device: 0,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        # Torch reads the stream before it can be replaced.
        monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: self._keep_for(tensor, stream))
        monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False, raising=False)

    def __enter__(self) -> SimulatedCuda:
        operations = _Operations(self)
        self._thread.modes = _Calls(self, operations), operations
        for mode in self._thread.modes:
            mode.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for mode in reversed(self._thread.modes):
            mode.__exit__(None, None, None)

    @property
    def entered(self) -> list[Stream]:
        """The streams that this thread has entered, the current one last."""
        if not hasattr(self._thread, "entered"):
            self._thread.entered = [Stream(self, _DEFAULT)]
        return self._thread.entered

    @property
    def current(self) -> Stream:
        """The current stream of this thread."""
        return self.entered[-1]

    def _new_stream(self, device: object = None) -> Stream:
        self._streams_made += 1
        return Stream(self, 1 + (self._streams_made - 1) % self._num_streams)

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor is on the device."""
        block = self._block_of(tensor)
        return block is not None and block.home != _HOST

    def is_pinned(self, tensor: Tensor) -> bool:
        """Return whether a tensor is in pinned host memory."""
        block = self._block_of(tensor)
        return block is not None and block.home == _HOST

    def hold(self, tensor: Tensor, home: int) -> None:
        """Record the memory of a new tensor as allocated on a stream, or as pinned."""
        storage = tensor.untyped_storage()
        if storage.nbytes():
            block = self._blocks[storage._cdata] = _Block(home, before=dict(self._let_go[home]))
            weakref.finalize(storage, self._release, storage._cdata, block).atexit = False

    def _keep_for(self, tensor: Tensor, stream: Stream) -> None:
        block = self._block_of(tensor)
        assert block is not None
        block.kept_for.add(stream.number)

    def run(self, name: object, *, reads: Iterable[Tensor], writes: Iterable[Tensor], line: int) -> None:
        """Record an operation on a stream or on the host."""
        clock = self.clocks[line]
        _merge(clock, self.clocks[_HOST])  # what the host queues comes after what it has seen
        clock[line] = clock.get(line, 0) + 1
        now = {line: clock[line]}
        for block in filter(None, map(self._block_of, reads)):
            self._check(clock, name, "reads what", block.writes, "may not have written yet")
            _merge(block.reads, now)
        for block in filter(None, map(self._block_of, writes)):
            self._check(clock, name, "writes where", block.before, "may still use what was there before")
            self._check(clock, name, "writes what", block.writes, "may still write")
            self._check(clock, name, "writes what", block.reads, "may still read")
            _merge(block.writes, now)

    def wait(self) -> None:
        """Make the host wait for the current stream."""
        self.current.synchronize()

    def _check(self, clock: Clock, name: object, does: str, wanted: Clock, why: str) -> None:
        for line in _not_in(clock, wanted):
            self.races.append(f"{name} on {self.current.number} {does} {_name(line)} {why}")

    def _block_of(self, tensor: Tensor) -> _Block | None:
        return self._blocks.get(tensor.untyped_storage()._cdata)

    def _release(self, key: int, block: _Block) -> None:
        del self._blocks[key]
        if block.home == _HOST:
            return  # torch reuses pinned memory only after the copies from it are done
        done: Clock = {}
        for number in block.kept_for:
            _merge(done, self.clocks[number])
        for used in (block.writes, block.reads):
            late = _not_in(done, used)
            _merge(self._let_go[block.home], {line: used[line] for line in late})


def _name(line: int) -> str:
    return "the host" if line == _HOST else f"stream {line}"


class _Calls(TorchFunctionMode):
    """Redirects calls that name the device, and reports its tensors as being on it."""

    def __init__(self, cuda: SimulatedCuda, operations: _Operations) -> None:
        super().__init__()
        self._cuda, self._operations = cuda, operations
        self._own: dict[Callable[..., Any], Callable[..., Any]] = {
            Tensor.device.__get__: lambda tensor, *_: DEVICE if cuda.holds(tensor) else torch.device("cpu"),
            Tensor.is_cuda.__get__: lambda tensor, *_: cuda.holds(tensor),
            Tensor.is_pinned: cuda.is_pinned,
            Tensor.to: self._to,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._own:
            return self._own[func](*args, **kwargs)
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            return self._on_device(func, *args, **{**kwargs, "device": "cpu"})
        if kwargs.get("pin_memory"):
            pinned = func(*args, **{**kwargs, "pin_memory": False})
            self._cuda.hold(pinned, _HOST)
            return pinned
        return func(*args, **kwargs)

    def _on_device(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        self._operations.is_asked = True
        try:
            return func(*args, **kwargs)
        finally:
            self._operations.is_asked = False

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        dtype = dtype or tensor.dtype
        if device is None or device.type != "cuda" or self._cuda.holds(tensor):
            return tensor.to(dtype)
        sent = self._on_device(Tensor.to, tensor, dtype, copy=True)
        if not (non_blocking and self._cuda.is_pinned(tensor)):
            self._cuda.wait()
        return sent


class _Operations(TorchDispatchMode):
    """Records what every operation reads, writes and allocates."""

    def __init__(self, cuda: SimulatedCuda) -> None:
        super().__init__()
        self._cuda, self.is_asked = cuda, False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch would import its compiler to disable it here

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.is_view:
            return result
        changed = _changed_by(func)
        given = [*zip(_names_of(func), args), *kwargs.items()]
        reads = _tensors(value for name, value in given if name not in changed)
        writes = _tensors(value for name, value in given if name in changed)
        is_there = self.is_asked or any(map(self._cuda.holds, [*reads, *writes]))
        line = self._cuda.current.number if is_there else _HOST
        if is_there and not changed:
            made = [tensor for tensor in _tensors([result]) if not self._cuda.holds(tensor)]
            for tensor in made:
                self._cuda.hold(tensor, line)
            reads, writes = ([], []) if "empty" in func._schema.name else (reads, made)
        self._cuda.run(func, reads=reads, writes=writes, line=line)
        if is_there and not isinstance(result, Tensor | tuple | list):
            self._cuda.wait()  # the host has read a number
        return result


@cache
def _names_of(func: Any) -> list[str]:
    return [argument.name for argument in func._schema.arguments]


@cache
def _changed_by(func: Any) -> set[str]:
    aliases = {argument.name: argument.alias_info for argument in func._schema.arguments}
    return {name for name, alias in aliases.items() if alias is not None and alias.is_write}


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """Return the tensors of the arguments or results of an operation, also inside lists."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(inner for inner in value if isinstance(inner, Tensor))
    return found
