"""Reductions in a thread, while the rank trains on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from flodl.distributed.coordination import Commit, Reduce, Refuse

from .averaging import Averaging
from .inbox import Inbox
from .messages import End


@dataclass(frozen=True, slots=True)
class Settle:
    """Wakes a rank without work, so that it adopts a version."""


class AheadAveraging(Averaging):
    """Keeps the weights of each arrival as a contribution; a version is adopted between two batches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Steps since the base version, and those in the reduction.
        self._steps = self._reducing_steps = 0
        self._is_reducing = self._drops_rest = False
        self._job: Callable[[], None] | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()

    def arrive(self, steps: int) -> None:
        self._steps += steps
        self.reducer.capture(self._steps)

    def take_spent_ms(self) -> float:
        """The rank does not wait for its reductions."""
        return 0.0

    def settle(self) -> None:
        if self._job is None:
            return
        with self._lock:
            job, self._job = self._job, None
        if job is not None:
            job()
            self._done.set()

    def settle_soon(self, job: Callable[[], None], wake: Callable[[], None]) -> None:
        """Let the thread that trains do this, and wait for it."""
        self._done.clear()
        with self._lock:
            self._job = job
        wake()
        self._done.wait()

    def reduce(self, command: Reduce) -> None:
        self._is_reducing = True
        self._reducing_steps = command.weights[command.members.index(self._rank)]
        super().reduce(command)

    def commit(self, command: Commit) -> None:
        super().commit(command)
        self._steps -= self._reducing_steps
        self._reducing_steps = 0
        self._is_reducing = False
        if self._drops_rest:
            self._drops_rest = False
            self.refuse()

    def refuse(self) -> None:
        if self._is_reducing:
            # What is in the reduction still counts; the rest is dropped once it is committed.
            self._drops_rest = True
            return
        super().refuse()
        self._steps = 0


class AheadInbox:
    """Handles reductions in its own thread, and queues everything else for the thread that trains."""

    def __init__(self, inbox: Inbox, averaging: AheadAveraging) -> None:
        self._inbox, self._averaging = inbox, averaging
        self._messages: SimpleQueue[Any] = SimpleQueue()
        self.stopping = inbox.stopping
        threading.Thread(target=self._run, name="flodl-reductions", daemon=True).start()

    def next(self) -> Any:
        message = self._messages.get()
        if isinstance(message, BaseException):
            raise message
        return message

    def _run(self) -> None:
        try:
            while not isinstance(message := self._inbox.next(), End):
                self._handle(message)
        except BaseException as error:
            message = error
            self.stopping.set()
        self._messages.put(message)

    def _handle(self, message: Any) -> None:
        averaging = self._averaging
        if isinstance(message, Reduce):
            averaging.reduce(message)
        elif isinstance(message, Commit):
            averaging.settle_soon(lambda: averaging.commit(message), self._wake)
        elif isinstance(message, Refuse):
            averaging.settle_soon(averaging.refuse, self._wake)
        else:
            self._messages.put(message)

    def _wake(self) -> None:
        self._messages.put(Settle())
