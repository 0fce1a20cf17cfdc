"""Take the picture of many-devices.md: `python docs/take_ranks_picture.py`, with Playwright and Chromium.

The run is synthetic: three devices of unequal speed, one of which is lost.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from flodl.monitor import Event, Journal
from flodl.monitor.exports import save_html
from flodl.train.ranks.recorder import Recorder

IMAGE = Path(__file__).parent / "images" / "ranks.png"
DEVICES = ("cuda:0", "cuda:1", "cpu")
# Seconds for a batch of 64 samples.
BATCH_S = (0.01, 0.018, 0.11)
SAMPLES, LOST_S, END_S = 130_000, 61.0, 80.0


class Simulation:
    """Records as a supervisor writes them."""

    def __init__(self, journal: Journal) -> None:
        self._now_s, self._start_s = 0.0, time.time() - END_S
        self._rng = random.Random(1)
        self._position, self._epoch = 0, 0
        self._recorder = Recorder(
            "cadence",
            num_samples=SAMPLES,
            emit=lambda data: journal.write(Event("ranks", data, self._start_s + self._now_s)),
            now_s=lambda: self._start_s + self._now_s,
        )

    def record(self, now_s: float, kind: str, **fields: Any) -> None:
        self._now_s = now_s
        self._recorder.on_event({"t_ms": 1000.0 * now_s, "kind": kind, **fields})

    def run(self) -> None:
        for rank, device in enumerate(DEVICES):
            self.record(0.0, "started", rank=rank, device=device, host="gpu-box")
            self.record(0.2, "joined", rank=rank)
        now_s, window_s, ranks = 0.5, 0.5, [0, 1, 2]
        while now_s < END_S:
            if now_s > LOST_S and 1 in ranks:
                ranks.remove(1)
                self.record(now_s, "lost", rank=1, reason="its process was ended by SIGKILL")
            now_s = self.window(now_s, window_s, ranks)
            window_s = min(1.2 * window_s, 3.0)
        for rank in ranks:
            self.record(now_s, "ended", rank=rank)
        self._recorder.flush()

    def window(self, now_s: float, window_s: float, ranks: list[int]) -> float:
        """One window: plans, arrivals, a reduction; at the end of an epoch, a pause."""
        work, arrivals = [], []
        for rank in ranks:
            batches = max(1, round(window_s / BATCH_S[rank] * self._rng.uniform(0.92, 1.0)))
            stop = min(self._position + 64 * batches, SAMPLES)
            if stop == self._position:
                continue
            batches = -(-(stop - self._position) // 64)
            ranges = ((self._position, stop),)
            self.record(now_s, "plan", rank=rank, batches=batches, ranges=ranges)
            work.append((rank, self._epoch, batches, ranges))
            took_s = batches * BATCH_S[rank] * self._rng.uniform(0.98, 1.1)
            arrivals.append((now_s + took_s, rank, took_s, batches))
            self._position = stop
        for arrived_s, rank, took_s, batches in sorted(arrivals):
            self.record(arrived_s, "arrived", rank=rank, took_ms=1000.0 * took_s, steps=batches)
        now_s = max(arrivals)[0] + 0.08
        for rank in ranks:
            divergence = 0.02 * self._rng.uniform(0.8, 1.2)
            fields = {"reduce_ms": 80.0, "num_bytes": 90 << 20, "divergence": divergence}
            self.record(now_s, "reduced", rank=rank, **fields)
        self.record(now_s, "commit", batches=sum(each[2] for each in work), work=work, late=())
        if self._position < SAMPLES:
            return now_s
        self._position, self._epoch = 0, self._epoch + 1
        self.record(now_s, "save", version=self._epoch)
        return now_s + 1.2


def main() -> None:
    """Write the run, and take the picture of its panel."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        with Journal.open(Path(folder) / "run") as journal:
            journal.write(Event("run_start", {"name": "unequal", "total_epochs": 9}, time.time() - END_S))
            Simulation(journal).run()
            journal.write(Event("run_end", {"status": "finished", "duration_s": END_S}))
        address = save_html(Path(folder) / "run.html", [Path(folder) / "run"]).as_uri()
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="light")
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        page.locator("#rank-work").screenshot(path=IMAGE)
        browser.close()


if __name__ == "__main__":
    main()
