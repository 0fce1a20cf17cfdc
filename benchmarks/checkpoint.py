"""Saving and loading a run: how long training is blocked, total time, and memory.

    python benchmarks/checkpoint.py [--megabytes 500] [--rounds 7] [--folder DIR]

The state belongs to a model with Adam, so two thirds of it are optimizer state. The rivals take turns:
torch.save, torch.distributed.checkpoint (DCP) and its asynchronous form, flodl's bundles and its background
writer. flodl's saves are on disk when they return and contain checksums, which are verified on loading.
Torch's saves do neither, so a variant of torch.save that flushes to disk is included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from harness import RESULTS, Timing, paired_ratio, table, take_turns, wait, write_results

from flodl.checkpoint import BackgroundWriter, read_bundle, save_bundle

State = dict[str, Any]
Save = Callable[[State, Path], object]


def make_state(megabytes: int, device: str) -> State:
    """Return weights and Adam's two moments of 48 layers, in the form of state dicts."""
    layers = 48
    numbers = megabytes * 1_000_000 // 4 // 3 // layers
    width = 1024
    shape = (max(1, numbers // width), width)
    model = {f"layer_{k}.weight": torch.randn(shape, device=device) for k in range(layers)}
    moments = {
        k: {
            "step": torch.tensor(10.0),
            "exp_avg": torch.randn(shape, device=device),
            "exp_avg_sq": torch.rand(shape, device=device),
        }
        for k in range(layers)
    }
    groups = [{"lr": 1e-3, "betas": (0.9, 0.999), "params": list(range(layers))}]
    return {"model": model, "optimizer": {"state": moments, "param_groups": groups}}


def for_dcp(state: State) -> State:
    """Return the state with string keys, which DCP requires."""
    moments = {str(k): value for k, value in state["optimizer"]["state"].items()}
    return {"model": state["model"], "optimizer": moments}


def save_torch(state: State, folder: Path) -> None:
    folder.mkdir()
    torch.save(state, folder / "state.pt")


def save_torch_flushed(state: State, folder: Path) -> None:
    folder.mkdir()
    with open(folder / "state.pt", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def save_dcp(state: State, folder: Path) -> None:
    dcp.save(for_dcp(state), checkpoint_id=folder, no_dist=True)


def save_flodl(state: State, folder: Path) -> None:
    save_bundle(folder, 1, state)


def load_torch(folder: Path, _: State) -> object:
    return torch.load(folder / "state.pt", weights_only=True, map_location="cpu")


def load_torch_mapped(folder: Path, _: State) -> object:
    return torch.load(folder / "state.pt", weights_only=True, map_location="cpu", mmap=True)


def load_dcp(folder: Path, like: State) -> object:
    target = for_dcp(like)
    dcp.load(target, checkpoint_id=folder, no_dist=True)
    return target


def load_flodl(folder: Path, _: State) -> object:
    return read_bundle(folder / "step-00000001")


def load_flodl_unverified(folder: Path, _: State) -> object:
    return read_bundle(folder / "step-00000001", verify=False)


SAVES: dict[str, Save] = {
    "torch.save": save_torch,
    "torch.save, flushed": save_torch_flushed,
    "DCP": save_dcp,
    "flodl bundle": save_flodl,
}
LOADS: dict[str, tuple[Save, Callable[[Path, State], object]]] = {
    "torch.load": (save_torch, load_torch),
    "torch.load, mapped": (save_torch, load_torch_mapped),
    "DCP": (save_dcp, load_dcp),
    "flodl bundle": (save_flodl, load_flodl),
    "flodl, unverified": (save_flodl, load_flodl_unverified),
}


def measure_saves(state: State, root: Path, rounds: int) -> dict[str, Timing]:
    """Return the seconds until each save returns."""

    def timer(save: Save) -> Callable[[int], list[float]]:
        def run(repeats: int) -> list[float]:
            return [_timed(lambda folder: save(state, folder), root) for _ in range(repeats)]

        return run

    timers = {name: timer(save) for name, save in SAVES.items()}
    for once in timers.values():
        once(1)
    return take_turns(timers, rounds=rounds)


def measure_loads(state: State, root: Path, rounds: int) -> dict[str, Timing]:
    """Return the seconds until every value is copied into the tensors of a model, from cached files."""
    folders: dict[Save, Path] = {}
    for save, _ in LOADS.values():
        if save not in folders:
            folders[save] = root / f"load-{len(folders)}"
            save(state, folders[save])
    target = {part: _like(content) for part, content in state.items()}

    def timer(name: str) -> Callable[[int], list[float]]:
        save, load = LOADS[name]

        def run(repeats: int) -> list[float]:
            taken = []
            for _ in range(repeats):
                wait()
                started = time.perf_counter()
                loaded = load(folders[save], target)
                _copy(loaded, target)
                wait()
                taken.append(time.perf_counter() - started)
                del loaded
            return taken

        return run

    timers = {name: timer(name) for name in LOADS}
    for once in timers.values():
        once(1)
    found = take_turns(timers, rounds=rounds)
    for folder in folders.values():
        shutil.rmtree(folder)
    return found


def measure_stalls(state: State, root: Path, rounds: int) -> tuple[dict[str, Timing], dict[str, Timing]]:
    """Return the seconds an asynchronous save blocks its caller, and the seconds until it is done."""
    stalls: dict[str, list[float]] = {"DCP async": [], "flodl writer": []}
    totals: dict[str, list[float]] = {"DCP async": [], "flodl writer": []}
    writer = BackgroundWriter(root / "writer")

    def run_dcp(number: int) -> tuple[float, float]:
        started = time.perf_counter()
        future = dcp.async_save(for_dcp(state), checkpoint_id=root / f"async-{number}", no_dist=True)
        stalled = time.perf_counter() - started
        future.result()
        total = time.perf_counter() - started
        shutil.rmtree(root / f"async-{number}")
        return stalled, total

    def run_flodl(number: int) -> tuple[float, float]:
        started = time.perf_counter()
        writer.save(number, state)
        stalled = time.perf_counter() - started
        writer.wait()
        total = time.perf_counter() - started
        shutil.rmtree(writer.last_saved or root)
        return stalled, total

    for number in range(rounds + 2):
        for name, run in (("DCP async", run_dcp), ("flodl writer", run_flodl)):
            wait()
            stalled, total = run(number)
            if number >= 2:  # the first saves allocate buffers
                stalls[name].append(stalled)
                totals[name].append(total)
    writer.close()
    return _timings(stalls), _timings(totals)


def measure_memory(name: str, work: str, megabytes: int, root: Path) -> float:
    """Return the megabytes that a save or load adds to the peak memory of a fresh process."""
    words = [
        sys.executable,
        __file__,
        "--megabytes",
        str(megabytes),
        "--folder",
        str(root),
        "--alone",
        work,
        name,
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def alone(work: str, name: str, megabytes: int, root: Path) -> float:
    """Run one save or load in this process, and return what it added to the peak memory."""
    state = make_state(megabytes, "cpu")
    folder = root / "alone"
    if work == "load":
        LOADS[name][0](state, folder)
        target = {part: _like(content) for part, content in state.items()}
        before = _reset_peak()
        _copy(LOADS[name][1](folder, target), target)
    else:
        before = _reset_peak()
        SAVES[name](state, folder)
    peak = _peak()
    shutil.rmtree(folder)
    return (peak - before) / 1e6


def _reset_peak() -> float:
    """Reset the peak memory, if the system supports it, and return the memory in use."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    return _status("VmRSS")


def _peak() -> float:
    return _status("VmHWM")


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return float(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {key}")


def _timed(save: Callable[[Path], object], root: Path) -> float:
    folder = root / "save"
    shutil.rmtree(folder, ignore_errors=True)
    wait()
    started = time.perf_counter()
    save(folder)
    taken = time.perf_counter() - started
    shutil.rmtree(folder)
    return taken


def _like(content: Any) -> Any:
    if isinstance(content, torch.Tensor):
        return torch.zeros_like(content)
    if isinstance(content, dict):
        return {key: _like(value) for key, value in content.items()}
    return content


def _copy(loaded: Any, target: Any) -> None:
    """Copy every tensor into the model, as load_state_dict does."""
    if isinstance(loaded, torch.Tensor):
        if loaded is not target:
            target.copy_(loaded)
    elif isinstance(loaded, dict):
        for key, value in loaded.items():
            other = target if isinstance(target, dict) else {}
            inner = other.get(key, other.get("state", {}).get(int(key)) if str(key).isdigit() else None)
            if inner is not None:
                _copy(value, inner)


def _timings(samples: dict[str, list[float]]) -> dict[str, Timing]:
    return {name: Timing(tuple(taken)) for name, taken in samples.items()}


def show(title: str, timings: dict[str, Timing], against: str) -> dict[str, Any]:
    """Print a table and return its numbers; ratios are to the first rival, and below 1 is faster."""
    facts: dict[str, Any] = {}
    for name, timing in timings.items():
        facts[name] = {
            "median_s": timing.median_s,
            "jitter": timing.jitter,
            "best_s": timing.best_s,
            f"ratio_to_{against}": paired_ratio(timing, timings[against]),
        }
    rows = [
        [name, f"{fact['median_s'] * 1000:.1f} ± {fact['jitter']:.0%}", f"{fact['best_s'] * 1000:.1f}",
         f"{fact[f'ratio_to_{against}']:.2f}"]
        for name, fact in facts.items()
    ]  # fmt: skip
    print(table([title, "ms", "best", f"ratio to {against}"], rows), end="\n\n")
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500, help="size of the state")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="folder to write to; by default a temporary folder")
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--alone", nargs=2, metavar=("WORK", "RIVAL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        root = Path(place)
        if options.alone:
            print(json.dumps(alone(*options.alone, options.megabytes, root)))
            return
        state = make_state(options.megabytes, device)
        results: dict[str, Any] = {
            "settings": {"megabytes": options.megabytes, "rounds": options.rounds, "device": device}
        }
        stalls, totals = measure_stalls(state, root, options.rounds)
        results["save"] = show(
            "save until it returns", measure_saves(state, root, options.rounds), "torch.save"
        )
        results["stall"] = show("asynchronous: training stands still", stalls, "DCP async")
        results["asynchronous_total"] = show("asynchronous: until it is saved", totals, "DCP async")
        results["load"] = show("load into a model", measure_loads(state, root, options.rounds), "torch.load")
        del state
        write_results(f"checkpoint_{device}", results, folder=options.json)
        results["memory_mb"] = {
            work: {name: measure_memory(name, work, options.megabytes, root) for name in rivals}
            for work, rivals in (("save", SAVES), ("load", LOADS))
        }
    for work, found in results["memory_mb"].items():
        rows = [[name, f"{added:.0f}"] for name, added in found.items()]
        print(table([f"memory added by a {work}", "MB"], rows), end="\n\n")
    print(f"wrote {write_results(f'checkpoint_{device}', results, folder=options.json)}")


if __name__ == "__main__":
    import warnings

    warnings.filterwarnings("ignore", module="torch")
    main()
