"""Rivals in processes of their own, so that all are compiled at the same time; then they take turns."""

from __future__ import annotations

import json
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .clock import Clock, Rival


@dataclass(frozen=True)
class RemoteRival:
    """A rival in another process, which times its own runs."""

    process: subprocess.Popen[str]

    def timed(self, repeats: int) -> list[float]:
        """Return the seconds of each of `repeats` runs."""
        seconds: list[float] = self._ask(repeats)
        return seconds

    def facts(self) -> dict[str, Any]:
        """Return what is added to the result."""
        facts: dict[str, Any] = self._ask("facts")
        return facts

    def _ask(self, question: object) -> Any:
        questions, answers = self.process.stdin, self.process.stdout
        assert questions is not None
        assert answers is not None
        questions.write(f"{json.dumps(question)}\n")
        questions.flush()
        return json.loads(answers.readline())


@dataclass
class Conductor(Clock):
    """Starts a process for each rival, and waits for the turn of its row before it measures."""

    # Starts a process for the rival whose name is appended.
    command: Sequence[str] = ()
    # The row writes this file when it is ready, and measures when the file is gone.
    turn: Path | None = None
    # A regular expression for the names of the rivals; the others are left out.
    rivals: str = ""
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def set_up(self, makers: Mapping[str, Callable[[], Rival]], *, reserve_s: float) -> dict[str, Any]:
        """Start all rivals at once and wait until they are ready, or until the time is up."""
        # A pool of compiler processes for each rival would not fit into memory.
        environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
        waiting = selectors.DefaultSelector()
        makers = {name: make for name, make in makers.items() if re.search(self.rivals, name)}
        for name in makers:
            process = subprocess.Popen(
                [*self.command, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            assert process.stdout is not None
            self.processes[name] = process
            waiting.register(process.stdout, selectors.EVENT_READ, name)
        rivals: dict[str, RemoteRival] = {}
        while waiting.get_map() and (left := self.left_s - reserve_s) > 0:
            for key, _ in waiting.select(left):
                waiting.unregister(key.fileobj)
                line = self.processes[key.data].stdout.readline()  # type: ignore[union-attr]
                failure = json.loads(line) if line else "its process ended"
                if failure:
                    self.failures[key.data] = failure
                else:
                    rivals[key.data] = RemoteRival(self.processes[key.data])
                    print(f"  {key.data}: ready after {time.perf_counter() - self.started:.0f} s", flush=True)
        for late in waiting.get_map().values():
            self.failures[late.data] = f"was not ready after {self.seconds - reserve_s:g} s"
            self.processes[late.data].kill()
        self._wait_for_turn()
        return {name: rivals[name] for name in makers if name in rivals}

    def _wait_for_turn(self) -> None:
        if self.turn is not None:
            self.turn.touch()
            began = time.perf_counter()
            while self.turn.exists():
                time.sleep(0.1)
            self.started += time.perf_counter() - began

    def close(self) -> None:
        """End the processes."""
        for process in self.processes.values():
            process.kill()


@dataclass
class Player(Clock):
    """Makes one rival of a row and answers the conductor until it closes the pipe."""

    rival: str = ""

    def set_up(self, makers: Mapping[str, Callable[[], Rival]], *, reserve_s: float) -> dict[str, Rival]:
        """Make the rival, answer questions, and exit."""
        answers = os.fdopen(os.dup(1), "w")
        # What libraries print must not mix with the answers.
        os.dup2(2, 1)

        def answer(value: object) -> None:
            answers.write(f"{json.dumps(value)}\n")
            answers.flush()

        rivals = super().set_up({self.rival: makers[self.rival]}, reserve_s=reserve_s)
        # Only what it needs, since the others are on the same device.
        torch.cuda.empty_cache()
        answer(self.failures.get(self.rival, ""))
        if rivals:
            rival = rivals[self.rival]
            for line in sys.stdin:
                question = json.loads(line)
                answer(dict(rival.facts()) if question == "facts" else list(rival.timed(question)))
        sys.stdout.flush()
        os._exit(0)
