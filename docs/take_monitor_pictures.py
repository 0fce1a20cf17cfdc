"""Take the pictures of monitor.md: `python docs/take_monitor_pictures.py`, with Playwright and Chromium.

The run is synthetic: an image classifier, halfway through forty epochs.
"""

from __future__ import annotations

import math
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from flodl.monitor import Event, Journal
from flodl.monitor.server import RunSource, Server

IMAGES = Path(__file__).parent / "images"
EPOCH_S, STEPS, DONE, TOTAL = 60.0, 120, 22, 40
ELAPSED_S = (DONE + 0.9) * EPOCH_S
SETTINGS = {
    "optimizer.lr": (3e-4, "fdl.yml:12"),
    "epochs": (TOTAL, "--epochs"),
    "batch_size": (256, "fdl.yml:9"),
}


def measurements(rng: random.Random) -> Iterator[Event]:
    """Yield metrics, hardware readings and progress."""
    for step in range(int(ELAPSED_S / EPOCH_S * STEPS)):
        loss = 2.2 * math.exp(-step / 1100) + 0.05
        values = {
            "train.loss": loss * rng.gauss(1, 0.06),
            "train.grad_norm": (0.4 + loss / 2) * rng.gauss(1, 0.2),
        }
        data = {"step": step, "epoch": step // STEPS, "metrics": values}
        yield Event("metrics", data, time_s=step * EPOCH_S / STEPS)
    for second in range(0, int(ELAPSED_S), 2):
        gpu = {
            "device": 0,
            "name": "NVIDIA H200",
            "util_pct": 93 + 4 * math.sin(second / 60) + rng.uniform(-2, 2),
            "vram_used_bytes": (70 + second / 300) * 2**30,
            "vram_total_bytes": 140 * 2**30,
        }
        cpu = 40 + 10 * math.sin(second / 90) + rng.uniform(-4, 4)
        ram = {"ram_used_bytes": (20 + second / 1500) * 2**30, "ram_total_bytes": 128 * 2**30}
        yield Event("resources", {"cpu_pct": cpu, **ram, "gpus": [gpu]}, time_s=float(second))
    for epoch in range(DONE):
        loss = 2.2 * math.exp(-epoch / 9) + 0.06
        metrics = {
            "train.loss": loss,
            "val.loss": loss * rng.gauss(1.12, 0.04),
            "val.accuracy": 0.98 - 0.8 * math.exp(-epoch / 5),
            "encoder.penalty": 0.5 * math.exp(-epoch / 8) + 0.05,
        }
        data = {"epoch": epoch, "metrics": metrics, "duration_s": rng.gauss(EPOCH_S, 0.4)}
        yield Event("epoch", data, time_s=(epoch + 1) * EPOCH_S)
    position = {"epoch": DONE, "step": int(0.9 * STEPS), "num_steps": STEPS}
    yield Event("progress", position, time_s=ELAPSED_S)


def other_events(rng: random.Random) -> Iterator[Event]:
    """Yield everything that is not a measurement."""
    versions = {"python": "3.12.3", "torch": "2.11.0"}
    config = [{"path": path, "value": value, "origin": origin} for path, (value, origin) in SETTINGS.items()]
    facts = {"name": "digit-reader", "total_epochs": TOTAL, "host": "gpu-box", "hardware": "16 threads"}
    yield Event("run_start", {**facts, "versions": versions, "config": config}, time_s=0.0)
    measured = {"gain": 2.31, "eager_step_s": 0.0062, "step_s": 0.0027}
    for step, tier, reason, numbers in (
        (0, "eager", "the first steps run eagerly as a reference", {}),
        (64, "captured", "equal to eager in 3 steps, and 2.3 times as fast", measured),
    ):
        yield Event("tier", {"tier": tier, "reason": reason, "step": step, **numbers}, time_s=1.0 + step / 2)
    for epoch in range(1, DONE + 1, 3):
        data = {"path": f"bundles/step-{epoch * STEPS:08d}", "reason": f"epoch {epoch}", "duration_s": 0.21}
        yield Event("save", data, time_s=epoch * EPOCH_S)
    for _ in range(9):
        pause = {"duration_s": rng.uniform(0.01, 0.08), "generation": 2}
        yield Event("gc", pause, time_s=rng.uniform(0, ELAPSED_S - 60))
    for level, message, when_s in (
        ("info", "the learning rate was halved: val.loss has not improved for 5 epochs", 900.0),
        ("warning", "the disk has 4.1 GB left: space for about 6 more saves", ELAPSED_S - 40),
        (
            "error",
            "TensorBoard is missing events from now on: PermissionError: runs/board",
            ELAPSED_S - 20,
        ),
    ):
        yield Event("alert", {"message": message, "level": level}, time_s=when_s)


def write_run(folder: Path) -> Journal:
    """Write the journal of the synthetic run."""
    rng = random.Random(0)
    started_s = time.time() - ELAPSED_S
    journal = Journal.open(folder)
    for event in sorted([*other_events(rng), *measurements(rng)], key=lambda event: event.time_s):
        journal.write(Event(event.kind, event.data, started_s + event.time_s))
    journal.flush()
    return journal


def take(browser: Browser, address: str) -> None:
    """Save both pictures."""
    page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="light")
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    box = page.locator("#metrics-chart .u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.52 * box["width"], box["y"] + 0.4 * box["height"])
    page.screenshot(path=IMAGES / "monitor-light.png", full_page=True)
    page.close()
    page = browser.new_page(viewport={"width": 1200, "height": 575}, color_scheme="dark")
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    page.locator("[data-axis=step]").click()
    page.locator("#smoothing").fill("0.9")
    page.locator("h1").hover()
    page.screenshot(path=IMAGES / "monitor-dark.png")
    page.close()


def main() -> None:
    """Write the run, serve it, and take the pictures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        journal = write_run(Path(folder))
        source = RunSource(journal, elapsed_s=lambda: ELAPSED_S)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with journal, Server([source], last_id=journal.last_id, port=0) as server:
            take(browser, server.url)
        browser.close()


if __name__ == "__main__":
    main()
