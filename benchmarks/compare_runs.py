"""Time to open many runs for comparison: `python benchmarks/compare_runs.py [--runs 200] [--keep FOLDER]`.

Writes realistic run folders (50 epochs, 1000 recorded steps, readings of the hardware, the settings that a
Trainer records). Measures how long `fdl monitor FOLDER` takes from its start to the first byte of the table
(`api/runs`), and how long the page takes in Chromium, once it is served, to show the table and the charts.
The page is opened twice: the second time, the summaries of the runs are cached. Without Playwright and
Chromium, only the first byte is measured.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
from harness import table, write_results

from flodl.monitor import Event, Journal

EPOCHS, STEPS_PER_EPOCH, EPOCH_S = 50, 20, 12.0
NUM_DEFAULTS = 80


def settings(rng: random.Random, number: int) -> dict[str, Any]:
    """Return the settings of a run: a few that are swept, and many that are the same everywhere."""
    swept = {
        "lr": float(f"{10 ** rng.uniform(-4, -1):.4g}"),
        "hidden": rng.choice([64, 128, 256, 512]),
        "dropout": round(rng.uniform(0.0, 0.5), 3),
        "optimizer": rng.choice(["AdamW", "SGD", "Lion"]),
        "seed": number % 3,
        "output": f"runs/{number:03d}",
    }
    return {**swept, **{f"trainer.default_{at}": at for at in range(NUM_DEFAULTS)}}


def events(number: int) -> Iterator[Event]:
    """Yield the events of one run."""
    rng = random.Random(number)
    chosen = settings(rng, number)
    floor = 0.05 + 0.1 * abs(math.log10(chosen["lr"]) + 2.5) + 8.0 / chosen["hidden"] + chosen["dropout"] / 8
    config = [
        {"path": path, "value": value, "origin": "" if path.startswith("trainer.") else "fdl.yml:9"}
        for path, value in chosen.items()
    ]
    facts = {"name": f"{number:03d}", "total_epochs": EPOCHS, "hardware": "16 threads", "config": config}
    yield Event("run_start", {**facts, "versions": {"python": "3.12.3", "torch": "2.11.0"}}, time_s=0.0)
    model = {
        "label": "Graph",
        "hash": f"{chosen['hidden']:064x}",
        "parameters": {"total": chosen["hidden"] * 794},
    }
    yield Event("graph", model, time_s=0.1)
    for epoch in range(EPOCHS):
        for step in range(STEPS_PER_EPOCH):
            total = epoch * STEPS_PER_EPOCH + step
            loss = floor + 2.2 * math.exp(-total / 180) * rng.gauss(1.0, 0.05)
            data = {
                "step": total,
                "epoch": epoch,
                "metrics": {"train.loss": loss, "train.grad_norm": 3.0 * loss},
            }
            yield Event("metrics", data, time_s=epoch * EPOCH_S + step * EPOCH_S / STEPS_PER_EPOCH)
        for second in range(0, int(EPOCH_S), 2):
            readings = {"cpu_pct": rng.uniform(20, 60), "ram_used_bytes": 2**33, "ram_total_bytes": 2**37}
            yield Event("resources", readings, time_s=epoch * EPOCH_S + second)
        loss = floor + 2.2 * math.exp(-(epoch + 1) * STEPS_PER_EPOCH / 180)
        metrics = {
            "train.loss": loss,
            "val.loss": 1.1 * loss,
            "val.accuracy": 1.0 - 0.3 * loss,
            "tokens_per_s": 52_000.0,
        }
        yield Event(
            "epoch", {"epoch": epoch, "metrics": metrics, "duration_s": EPOCH_S}, time_s=(epoch + 1) * EPOCH_S
        )
    end_s = EPOCHS * EPOCH_S
    yield Event("run_end", {"status": "finished", "duration_s": end_s}, time_s=end_s)


def write_runs(folder: Path, count: int) -> None:
    """Write run folders 001, 002, …"""
    start_s = time.time() - 3600.0
    for number in range(1, count + 1):
        with Journal.open(folder / f"{number:03d}") as journal:
            for event in events(number):
                journal.write(Event(event.kind, event.data, start_s + event.time_s))


# The page itself notes when it has painted something, in ms since the navigation started.
WATCH = """
window.painted = {};
new MutationObserver(() => {
  const numRows = document.querySelectorAll("#runs-table tbody tr").length;
  for (const [name, wanted] of [["table", 1], ["all rows", NUM_RUNS]]) {
    if (numRows < wanted || name in window.painted) continue;
    window.painted[name] = null;
    const note = () => (window.painted[name] = performance.now());
    // A task of this priority comes before the timers of the page.
    requestAnimationFrame(() => scheduler.postTask(note, { priority: "user-blocking" }));
  }
}).observe(document, { childList: true, subtree: true });
"""


def open_page(url: str, num_runs: int) -> dict[str, float]:
    """Return how long the page takes to paint the table, its last row, and the charts below it; twice."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        found = {}
        for visit in ("first", "second"):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.add_init_script(WATCH.replace("NUM_RUNS", str(num_runs)))
            started_s = time.perf_counter()
            page.goto(url, wait_until="commit")
            page.wait_for_selector("html[data-ready]")
            charts_s = time.perf_counter() - started_s
            for name, painted_ms in page.evaluate("window.painted").items():
                found[f"{visit} visit: {name}"] = painted_ms / 1000
            found[f"{visit} visit: charts"] = charts_s
            page.close()
        browser.close()
    return found


def measure(folder: Path, *, browser: bool) -> dict[str, float]:
    """Start `fdl monitor` and read the table, or open its page in a browser that is already running."""
    started_s = time.perf_counter()
    words = [sys.executable, "-m", "flodl.cli", "monitor", str(folder), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().split()[0]
            if browser:
                return open_page(url, sum(1 for _ in folder.iterdir()))
            found = {"command: page is served": time.perf_counter() - started_s}
            with urlopen(f"{url}api/runs") as response:
                response.read(1)
                found["command: first byte of the table"] = time.perf_counter() - started_s
            used = psutil.Process(process.pid).cpu_times()
            return {**found, "command: CPU time until then": used.user + used.system}
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--keep", type=Path, help="Write the runs here and keep them; reuse those that are there."
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        if not any(folder.glob("*/journal.jsonl")):
            write_runs(folder, options.runs)
        browsers = (False, True) if shutil.which("chromium") else (False,)
        rounds = [
            {name: value for browser in browsers for name, value in measure(folder, browser=browser).items()}
            for _ in range(options.rounds)
        ]
    median_s = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    print(table(["", "median s"], [[name, f"{seconds:.3f}"] for name, seconds in median_s.items()]))
    settings = {"runs": options.runs, "rounds": options.rounds}
    write_results("compare_runs", {"settings": settings, "median_s": median_s})


if __name__ == "__main__":
    main()
