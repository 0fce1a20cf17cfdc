"""What the supervisor costs: the real one, with ranks that answer at once and train nothing.

    python benchmarks/supervisor_load.py [--ranks 10,100,1000] [--windows 20]

All ranks are one other process, which holds the far ends of their connections and answers each message as a
rank would. So the CPU time of this process is that of the supervisor: its decisions, its messages and system
calls. `simulate_ranks.py` uses the result.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import RESULTS, table, write_results

from flodl.distributed.cadence import CadenceSettings
from flodl.distributed.coordination import (
    Arrived,
    CoordinatorSettings,
    Joined,
    MeetingSettings,
    Plan,
    Reduce,
    Reduced,
)
from flodl.distributed.coverage import Epochs
from flodl.distributed.ranks import (
    Beat,
    Consensus,
    End,
    Fetch,
    Frames,
    Link,
    Report,
    Save,
    Saved,
    Start,
    to_frame,
)
from flodl.distributed.supervisor import RankSpec, Supervisor, SupervisorSettings

ANCHOR = 10


@dataclass
class Player:
    """Answers the messages of the supervisor for one rank."""

    connected: socket.socket
    frames: Frames
    rank: int = -1

    def answer(self, message: Any) -> object | None:
        if isinstance(message, Start):
            self.rank = message.info.rank
            return Report(Joined(self.rank))
        if isinstance(message, Plan):
            (plan,), (lease,) = message.plans, message.leases
            took_ms = 10.0 * lease.batches
            event = Arrived(self.rank, message.generation, plan, lease.batches, took_ms, loss=1.0)
            return Report(event, {"took_ms": took_ms, "metrics": {"loss": (1.0, 1.0)}})
        if isinstance(message, Reduce):
            event = Reduced((self.rank,), message.window, message.generation, 1.0, 0.01)
            return Report(event, {"wait_ms": 0.0, "reduce_ms": 1.0, "num_bytes": 0})
        if isinstance(message, Save):
            import cloudpickle  # type: ignore[import-untyped]

            return Saved(message.point.version, cloudpickle.dumps(None))
        if isinstance(message, Fetch):
            return Consensus(0, b"", "float32", b"")
        return None


def play(sockets: list[socket.socket], num_beats: int) -> None:
    """Answer for all ranks until the supervisor is gone; send beats first, if asked to."""
    selector = selectors.DefaultSelector()
    for each in sockets:
        selector.register(each, selectors.EVENT_READ, Player(each, Frames()))
    while selector.get_map():
        for key, _ in selector.select():
            player: Player = key.data
            data = b""
            with suppress(OSError):
                data = player.connected.recv(1 << 20)
            if not data:
                selector.unregister(player.connected)
                continue
            for message in player.frames.feed(data):
                found = player.answer(message)
                if isinstance(message, Start):
                    for number in range(num_beats):
                        player.connected.sendall(to_frame(Beat(number)))
                if found is not None:
                    player.connected.sendall(to_frame(found))
                if isinstance(message, End):
                    selector.unregister(player.connected)
                    player.connected.close()
                    break


class PlayedProcess:
    """One of the ranks."""

    host = "localhost"

    def __init__(self, pid: int, connected: socket.socket) -> None:
        self.pid, self.link = pid, Link(connected)
        self._sentinel = os.pidfd_open(pid)
        self._is_open = True

    @property
    def sentinel(self) -> int | None:
        return self._sentinel

    def exit_reason(self) -> str | None:
        return "it ended"

    def kill(self) -> None:
        pass

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self.link.close()
            os.close(self._sentinel)


class PlayedLauncher:
    """Connects ranks to the process that plays them."""

    def __init__(self, num_ranks: int, num_beats: int = 0) -> None:
        pairs = [socket.socketpair() for _ in range(num_ranks)]
        self._own = [own for own, _ in pairs]
        others = [other for _, other in pairs]
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=self._play, args=(others, num_beats), daemon=True)
        self._process.start()
        for other in others:
            other.close()

    def _play(self, others: list[socket.socket], num_beats: int) -> None:
        for own in self._own:
            own.close()
        play(others, num_beats)

    def start(self, spec: RankSpec) -> PlayedProcess:
        assert self._process.pid is not None
        return PlayedProcess(self._process.pid, self._own.pop())

    def close(self) -> None:
        self._process.join(5.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class NoWorker:
    """Is never created."""


def run(num_ranks: int, num_windows: int, num_beats: int = 0) -> tuple[float, float]:
    """Return the CPU time of the supervisor from the first commit to the last window, and the wall time."""
    begins: list[tuple[float, float]] = []

    def on_commit(report: Any) -> None:
        begins.append((time.process_time(), time.perf_counter()))

    launcher = PlayedLauncher(num_ranks, num_beats)
    supervisor = Supervisor(
        NoWorker,
        ranks=[RankSpec()] * num_ranks,
        epochs=Epochs(num_samples=num_ranks * ANCHOR * num_windows, batch_size=1),
        settings=CoordinatorSettings(
            cadence=CadenceSettings(anchor=ANCHOR, growth=False),
            meeting=MeetingSettings(quorum=1.0),
            guard="none",
            start_ranks=num_ranks,
        ),
        supervision=SupervisorSettings(),
        launcher=launcher,
        on_commit=on_commit,
    )
    began_s = time.process_time()
    try:
        supervisor.run()
    finally:
        launcher.close()
    if num_beats:
        return begins[0][0] - began_s, 0.0
    windows = len(begins) - 1
    return (begins[-1][0] - begins[0][0]) / windows, (begins[-1][1] - begins[0][1]) / windows


def measure(num_ranks: int, num_windows: int) -> dict[str, float]:
    """Return microseconds of CPU time per rank: of a window, and of a sign of life."""
    _allow_files(4 * num_ranks + 200)
    window_s, wall_s = min(run(num_ranks, num_windows) for _ in range(3))
    num_beats = max(10, 20_000 // num_ranks)
    with_beats = min(run(num_ranks, 2, num_beats)[0] for _ in range(2))
    without = min(run(num_ranks, 2, 1)[0] for _ in range(2))
    return {
        "window_us_per_rank": 1e6 * window_s / num_ranks,
        "beat_us": 1e6 * max(0.0, with_beats - without) / (num_ranks * (num_beats - 1)),
        "window_ms": 1e3 * window_s,
        "wall_ms": 1e3 * wall_s,
    }


def _allow_files(num: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < num:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(num, hard), hard))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", default="10,100,1000")
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args()
    found = {num: measure(int(num), options.windows) for num in options.ranks.split(",")}
    rows = [
        [num, f"{each['window_ms']:.2f}", f"{each['window_us_per_rank']:.0f}", f"{each['beat_us']:.1f}"]
        for num, each in found.items()
    ]
    print(table(["ranks", "ms per window", "µs per rank and window", "µs per sign of life"], rows))
    write_results("supervisor_load", {"windows": options.windows, "ranks": found}, folder=options.json)


if __name__ == "__main__":
    main()
