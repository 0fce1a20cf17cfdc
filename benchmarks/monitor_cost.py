"""Cost of the monitor: the time of a training step without a monitor, with one, and with 20 readers.

    python benchmarks/monitor_cost.py [--rounds 30] [--steps 500] [--open]

Every step calls `log_step` and `progress`; resources are sampled once per second. The readers run in
another process: 15 read the live stream, 5 connect and never read. The three variants take turns. Costs are
ratios within a round, reported as the median over all rounds with its standard error. The time inside the
two calls is measured too, because step times can vary more than the monitor costs. `--open` also measures
how long a journal of ten million points takes to open, in Python and in Chromium.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from harness import RESULTS, table, take_turns, wait, write_results
from torch import nn

from flodl import set_verbosity
from flodl.monitor import Event, Journal, Monitor
from flodl.monitor.server import FollowedRuns, Server
from flodl.monitor.snapshot import snapshot

NUM_READING, NUM_STALLED = 15, 5
READERS = """
import socket, sys, threading
for line in sys.stdin:
    port, reading, stalled = map(int, line.split())
    def connect():
        found = socket.create_connection(("127.0.0.1", port))
        found.sendall(b"GET /events HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
        return found
    def read(connection):
        try:
            while connection.recv(65536):
                pass
        except OSError:
            pass
    connections = [connect() for _ in range(reading + stalled)]
    for connection in connections[:reading]:
        threading.Thread(target=read, args=(connection,), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.readline()
    for connection in connections:
        connection.close()
    print("closed", flush=True)
"""

Watch = Callable[[int, torch.Tensor], None]


class Training:
    """A small loop to monitor: an MLP with about one millisecond per step."""

    def __init__(self, device: str, batch: int, width: int) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, 64)).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.x = torch.randn(batch, 64, device=device)
        self.y = torch.randn(batch, 64, device=device)
        self.in_calls: list[float] = []

    def run(self, steps: int, watch: Watch) -> list[float]:
        """Return the seconds of each step, including the monitor."""
        taken = []
        for step in range(steps):
            started = time.perf_counter()
            loss = nn.functional.mse_loss(self.model(self.x), self.y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            called = time.perf_counter()
            watch(step, loss)
            self.in_calls.append(time.perf_counter() - called)
            wait()
            taken.append(time.perf_counter() - started)
        return taken


class Rival:
    """One variant of the loop; stores the times of every step per round."""

    def __init__(
        self, training: Training, steps: int, readers: subprocess.Popen[str] | None, watched: bool
    ) -> None:
        self.training, self.steps, self.readers, self.watched = training, steps, readers, watched
        self.rounds: list[list[float]] = []
        self.in_calls: list[float] = []

    def __call__(self, repeats: int) -> list[float]:
        medians = []
        for _ in range(repeats):
            with self._monitored() as watch:
                self.training.run(self.steps // 4, watch)
                self.training.in_calls = self.in_calls
                self.rounds.append(self.training.run(self.steps, watch))
                self.training.in_calls = []
            medians.append(statistics.median(self.rounds[-1]))
        return medians

    @contextmanager
    def _monitored(self) -> Iterator[Watch]:
        if not self.watched:
            yield lambda step, loss: None
            return
        with tempfile.TemporaryDirectory() as folder:
            monitor = Monitor(1, folder, console=False)
            if self.readers is not None:
                monitor.serve(port=0)
                self._send(f"{urlsplit(monitor.url).port} {NUM_READING} {NUM_STALLED}")

            def watch(step: int, loss: torch.Tensor) -> None:
                monitor.log_step(step, {"loss": loss, "lr": 1e-3}, epoch=0)
                monitor.progress(0, step, self.steps)

            yield watch
            monitor.close()
            if self.readers is not None:
                self._send("")

    def _send(self, words: str) -> None:
        assert self.readers is not None
        assert self.readers.stdin is not None
        assert self.readers.stdout is not None
        print(words, file=self.readers.stdin, flush=True)
        self.readers.stdout.readline()


def quantile(samples: list[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def measure(options: argparse.Namespace, device: str) -> dict[str, Any]:
    training = Training(device, options.batch, options.width)
    readers = subprocess.Popen(
        [sys.executable, "-c", READERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    rivals = {
        "off": Rival(training, options.steps, None, watched=False),
        "on": Rival(training, options.steps, None, watched=True),
        "on, 20 readers": Rival(training, options.steps, readers, watched=True),
    }
    for rival in rivals.values():
        rival(1)
        rival.rounds.clear()
        rival.in_calls.clear()
    take_turns(rivals, rounds=options.rounds)
    readers.terminate()
    readers.wait()
    bare = rivals["off"].rounds
    return {
        name: compared(rival.rounds, bare)
        | {
            "in_call_median_us": 1e6 * quantile(rival.in_calls, 0.5),
            "in_call_p99_us": 1e6 * quantile(rival.in_calls, 0.99),
        }
        for name, rival in rivals.items()
    }


def compared(ours: list[list[float]], bare: list[list[float]]) -> dict[str, float]:
    """Return the median and 99th percentile of all steps, and their relative increase.

    The increase is computed within each round, and its median over the rounds is returned with its standard
    error: the speed of the machine changes more from minute to minute than a monitor costs.
    """
    found = {}
    for name, share in (("median", 0.5), ("p99", 0.99)):
        growth = [
            quantile(own, share) / quantile(off, share) - 1 for own, off in zip(ours, bare, strict=True)
        ]
        cost = statistics.median(growth)
        found[f"{name}_ms"] = 1000 * quantile([step for steps in ours for step in steps], share)
        found[f"{name}_cost"] = cost
        spread = 1.4826 * statistics.median(abs(value - cost) for value in growth)
        found[f"{name}_cost_error"] = 1.2533 * spread / len(growth) ** 0.5
    return found


def make_journal(folder: Path, rows: int = 1_000_000, metrics: int = 10) -> None:
    with Journal.open(folder) as journal:
        journal.write(Event("run_start", {"name": "ten million", "total_epochs": 10}, time_s=0.0))
        for step in range(rows):
            values = {f"metric_{number}": 1.0 / (1 + step % 1000 + number) for number in range(metrics)}
            journal.write(Event("metrics", {"epoch": 0, "step": step, "metrics": values}, time_s=step * 0.01))
            if step % 50_000 == 0:
                journal.flush()


def measure_opening() -> dict[str, Any]:
    """Measure the seconds until ten million points are read, and until the page shows them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_journal(folder)
        started = time.perf_counter()
        points = sum(len(line["x"]) for line in snapshot(folder)["metrics"].values())
        results = {
            "points": 10_000_000,
            "points_sent": points,
            "journal_mb": (folder / "journal.jsonl").stat().st_size / 1e6,
            "read_s": time.perf_counter() - started,
        }
        browser = next(
            filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
        )
        if browser is None:
            return results
        from playwright.sync_api import sync_playwright

        followed = FollowedRuns([folder])
        with Server(followed.runs, port=0) as server, sync_playwright() as driver:
            page = driver.chromium.launch(
                executable_path=browser, args=["--no-sandbox", "--disable-gpu"]
            ).new_page()
            opened = []
            for _ in range(3):
                started = time.perf_counter()
                page.goto(server.url)
                page.wait_for_selector("html[data-ready] .uplot canvas")
                opened.append(time.perf_counter() - started)
                time.sleep(2.5)  # so that the next opening reads the journal again
            results |= {"page_s": statistics.median(opened), "page_slowest_s": max(opened)}
        results["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=500, help="steps per round")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--open", action="store_true", help="also open ten million points")
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    set_verbosity("quiet")
    device = options.device
    results = measure(options, device)
    rows = [
        [
            name,
            f"{found['median_ms']:.3f} ms",
            f"{found['median_cost']:+.2%} ± {found['median_cost_error']:.2%}",
            f"{found['p99_ms']:.3f} ms",
            f"{found['p99_cost']:+.2%} ± {found['p99_cost_error']:.2%}",
            f"{found['in_call_median_us']:.1f} µs",
            f"{found['in_call_p99_us']:.1f} µs",
        ]
        for name, found in results.items()
    ]
    print(table(["monitor", "median", "cost", "p99", "cost", "inside the calls: median", "p99"], rows))
    settings = {name: getattr(options, name) for name in ("rounds", "steps", "batch", "width")} | {
        "device": device
    }
    written = {"settings": settings, "monitor": results}
    if options.open:
        written["opening"] = measure_opening()
        print(written["opening"])
    print(f"wrote {write_results(f'monitor_cost_{device}', written, folder=options.json)}")


if __name__ == "__main__":
    main()
