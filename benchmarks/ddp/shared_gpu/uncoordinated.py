"""A process that trains alone, next to others that it knows nothing about: the speed that ranks could have.

    python -m shared_gpu.uncoordinated DEVICE TIER BATCH_SIZE PRECISION

For each line "SETTLE SECONDS" on its input, it trains and answers with the samples that it trained.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .mps import SHARE
from .task import Task, make_loader, make_step

NUM_IMAGES = 50_000
# Steps by which the host may be ahead of the device, and steps between two looks at the clock.
AHEAD, EVERY = 4, 8


class Alone:
    """Trains as fast as it can, like a plain loop over a loader."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._step = make_step(task)
        num = NUM_IMAGES if task.device != "cpu" else 16 * task.batch_size
        self._loader = make_loader(task, num, device=task.device)
        self._batches = self._endless()
        self._events: deque[Any] = deque()
        for _ in range(100 if task.device != "cpu" else 2):
            self._step(*next(self._batches))
        self.facts = {"tier": self._step.tier, "mode": self._loader.mode}

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    def train(self, seconds: float) -> tuple[int, float]:
        """Return the samples and the seconds up to the end of the last step on the device."""
        self._wait()
        started_s = now_s = time.perf_counter()
        steps = 0
        while now_s - started_s < seconds:
            for _ in range(EVERY):
                self._step(*next(self._batches))
            steps += EVERY
            self._limit()
            now_s = time.perf_counter()
        self._wait()
        return steps * self._task.batch_size, time.perf_counter() - started_s

    def _limit(self) -> None:
        """Do not run ahead of the device by many steps: the end of a measurement would be late."""
        if self._task.device == "cpu":
            return
        event = torch.cuda.Event()
        event.record()
        self._events.append(event)
        if len(self._events) > AHEAD:
            self._events.popleft().synchronize()

    def _wait(self) -> None:
        if self._task.device != "cpu":
            torch.cuda.synchronize()


def serve(task: Task) -> None:
    if task.device == "cpu":
        torch.set_num_threads(1)
    alone = Alone(task)
    print(json.dumps(alone.facts), flush=True)
    for line in sys.stdin:
        settle, seconds = map(float, line.split())
        alone.train(settle)
        samples, took_s = alone.train(seconds)
        # The other processes measure until about now: they must not be faster at their end.
        alone.train(settle)
        print(json.dumps({"samples": samples, "seconds": took_s}), flush=True)


class Crowd:
    """Uncoordinated processes, each with its share of the GPU. They wait until they are asked to train."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes
        self.facts = self._answers()

    def measure(self, seconds: float, *, settle: float = 0.5) -> list[float]:
        """Let all of them train at the same time; return the samples per second of each."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{settle} {seconds}\n")
            process.stdin.flush()
        return [answer["samples"] / answer["seconds"] for answer in self._answers()]

    def _answers(self) -> list[dict[str, Any]]:
        lines = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"an uncoordinated process ended with code {process.wait()}")
            lines.append(json.loads(line))
        return lines


@contextmanager
def crowd(task: Task, shares: Sequence[int]) -> Iterator[Crowd]:
    """Start a process for each share, and end them all at the end."""
    words = [task.device, task.tier, str(task.batch_size), task.precision]
    path = os.pathsep.join(filter(None, sys.path))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "shared_gpu.uncoordinated", *words],
            env=os.environ | {SHARE: str(share), "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for share in shares
    ]
    try:
        yield Crowd(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    serve(Task(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
