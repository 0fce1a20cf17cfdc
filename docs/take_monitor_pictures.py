"""Take the pictures of monitor.md: `python docs/take_monitor_pictures.py`, with Playwright and Chromium.

The run is synthetic: an image classifier, halfway through forty epochs. So are the runs of the comparison.
With `--sweep FOLDER`, the picture of sweeps.md is taken of this sweep instead, a real one.
"""

from __future__ import annotations

import argparse
import io
import math
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from flodl.cli.given_runs import find_given_runs
from flodl.monitor import Event, Journal
from flodl.monitor.server import FollowedRuns, RunSource, Server

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
            "images_per_s": 11_400 * rng.gauss(1, 0.01),
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


def write_runs(folder: Path) -> None:
    """Write the journals of 40 synthetic runs, with settings that matter to a different degree."""
    rng = random.Random(3)
    for number in range(1, 41):
        rate, dropout = 10 ** rng.uniform(-4, -1), rng.uniform(0.0, 0.5)
        hidden, optimizer = rng.choice([64, 128, 256, 512]), rng.choice(["AdamW", "SGD", "Lion"])
        settings = {
            "lr": float(f"{rate:.3g}"),
            "hidden": hidden,
            "dropout": round(dropout, 2),
            "optimizer": optimizer,
        }
        config = [{"path": path, "value": value, "origin": "fdl.yml:9"} for path, value in settings.items()]
        loss_at_end = 0.1 + 0.12 * abs(math.log10(rate) + 2.6) + 6 / hidden + 0.2 * dropout
        start_s, epoch_s = time.time() - 7200 + 60 * number, 1.2 + hidden / 200
        with Journal.open(folder / f"{number:03d}") as journal:
            journal.write(
                Event("run_start", {"name": f"{number:03d}", "total_epochs": 20, "config": config}, start_s)
            )
            for epoch in range(20):
                loss = (loss_at_end + 2 * math.exp(-epoch / 5 / (0.5 + 40 * rate))) * rng.gauss(1, 0.03)
                metrics = {
                    "train.loss": loss,
                    "val.loss": 1.1 * loss,
                    "val.accuracy": max(1 - loss / 2.6, 0.08),
                }
                data = {"epoch": epoch, "metrics": metrics, "duration_s": epoch_s}
                journal.write(Event("epoch", data, start_s + (epoch + 1) * epoch_s))
            end = {"status": "finished", "duration_s": 20 * epoch_s}
            journal.write(Event("run_end", end, start_s + 20 * epoch_s))


def take_comparison(browser: Browser, folder: Path, name: str, *, scheme: Literal["light", "dark"]) -> None:
    """Save the picture of the runs in a folder: the table, and the settings with the results."""
    given = find_given_runs([folder])
    followed = FollowedRuns(given.single, folders=given.folders, focus=given.focus)
    with Server(followed.runs, port=0) as server:
        page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme=scheme)
        page.goto(server.url)
        page.wait_for_selector("html[data-ready]")
        box = page.locator("#parallel").bounding_box()
        assert box is not None
        clip = {"x": 0, "y": 0, "width": 1200, "height": box["y"] + box["height"] + 14}
        save(page.screenshot(full_page=True, clip=clip), IMAGES / name)
        page.close()


def save(picture: bytes, path: Path) -> None:
    """Save a picture with 256 colors, at a third of the size."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    few = image.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def take(browser: Browser, address: str) -> None:
    """Save both pictures."""
    page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="light")
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    box = page.locator("#metrics-chart .u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.52 * box["width"], box["y"] + 0.4 * box["height"])
    save(page.screenshot(full_page=True), IMAGES / "monitor-light.png")
    page.close()
    page = browser.new_page(viewport={"width": 1200, "height": 575}, color_scheme="dark")
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    page.locator("[data-axis=step]").click()
    page.locator("#smoothing").fill("0.9")
    page.locator("h1").hover()
    save(page.screenshot(), IMAGES / "monitor-dark.png")
    page.close()


def main() -> None:
    """Write the runs, serve them, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", type=Path, help="Take only the picture of this sweep.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        if options.sweep:
            take_comparison(browser, options.sweep, "sweep.png", scheme="light")
            return
        write_runs(Path(folder) / "runs")
        take_comparison(browser, Path(folder) / "runs", "compare.png", scheme="dark")
        journal = write_run(Path(folder) / "run")
        source = RunSource(journal, elapsed_s=lambda: ELAPSED_S)
        with journal, Server([source], last_id=journal.last_id, port=0) as server:
            take(browser, server.url)
        browser.close()


if __name__ == "__main__":
    main()
