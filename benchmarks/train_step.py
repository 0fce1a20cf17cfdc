"""The suite, trained by every rival in one run: torch eager and compiled, Lightning, JAX, flodl.

    python benchmarks/train_step.py [--models mlp,gru_seq] [--rivals reference,flodl] [--check]

An epoch is fifty steps over fifty fixed random batches that are already on the device. Rivals take
turns. The result is the median over all epochs; jitter is their scaled MAD divided by the median.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from budget import OverBudget, budget
from chart import chart
from harness import CLOCKS, RESULTS, machine, table, take_turns, write_results
from identity import identity
from models import SUITE, Batches, Reference, small_suite
from rivals import RIVALS, Runner, Unavailable
from standings import identity_note, notes, ratios, steadiness_note, times


def ready(
    rival: str, reference: Reference, batches: Batches, options: argparse.Namespace
) -> tuple[Runner | None, dict[str, Any]]:
    """Build a rival and train its warmup epochs within the budget, or return why it is missing."""
    kind = RIVALS[rival]
    if kind.cuda_only and options.device == "cpu":
        return None, {"missing": "needs CUDA"}
    started = time.perf_counter()
    try:
        with budget(options.budget):
            runner = kind.build(reference, batches, options.device)
            runner.turn(1)
    except (Unavailable, OverBudget) as reason:
        return None, {"missing": str(reason)}
    except Exception as error:
        return None, {"missing": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"}
    setup_s = time.perf_counter() - started
    if options.warmup > 1:
        runner.turn(options.warmup - 1)
    return runner, {"setup_s": setup_s}


def contest(reference: Reference, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all rivals on one model."""
    torch.backends.cudnn.benchmark = reference.autotune
    batches = reference.batches(options.batches, options.device)
    taken: dict[str, dict[str, Any]] = {}
    runners: dict[str, Runner] = {}
    for rival in options.rivals:
        runner, taken[rival] = ready(rival, reference, batches, options)
        if runner is not None:
            runners[rival] = runner
    timings = take_turns(
        {rival: runner.turn for rival, runner in runners.items()},
        rounds=options.rounds,
        repeats=options.epochs,
        settle=options.settle,
        settle_s=options.settle_s,
        warm_rounds=options.warm_rounds,
    )
    # The number that all have run: some needed more epochs to settle.
    num_epochs = min((len(runner.losses) for runner in runners.values()), default=0)
    for rival, runner in runners.items():
        timing = timings[rival]
        taken[rival] |= {
            "ms": timing.median_s * 1000,
            "jitter": timing.jitter,
            "best_ms": timing.best_s * 1000,
            "epochs_ms": [round(sample * 1000, 4) for sample in timing.samples_s],
            "first_loss": runner.losses[0],
            "final_loss": runner.losses[num_epochs - 1],
            "num_epochs": num_epochs,
            "note": runner.note(),
        }
    found: dict[str, Any] = {"rivals": taken}
    if options.check:
        found["identity"] = identity(reference, batches, options.device)
    return found


def forget() -> None:
    """Free the compiled code, recordings and cached memory of one model before the next."""
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words = {"type": lambda given: given.split(",")}
    parser.add_argument("--models", **words, default=list(SUITE), help=", ".join(SUITE))
    parser.add_argument("--rivals", **words, default=list(RIVALS), help=", ".join(RIVALS))
    parser.add_argument("--epochs", type=int, default=4, help="epochs per turn")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each rival")
    parser.add_argument("--warm-rounds", type=int, default=1, help="first turns that do not count")
    parser.add_argument("--settle", type=int, default=1, help="epochs of each turn that do not count")
    parser.add_argument("--settle-s", type=float, default=0.2, help="seconds of each turn that do not count")
    parser.add_argument("--warmup", type=int, default=2, help="epochs before the first timed one")
    parser.add_argument("--batches", type=int, default=50, help="steps per epoch")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--clock",
        choices=list(CLOCKS),
        default="wall",
        help="cpu: the CPU time of the process, for a CPU that other programs use too",
    )
    parser.add_argument("--threads", type=int, help="threads of torch on a CPU")
    parser.add_argument("--budget", type=float, default=120.0, help="setup time limit of a rival in seconds")
    parser.add_argument(
        "--check", action="store_true", help="compare 60 losses with a plain loop, bit for bit"
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes, as a smoke test")
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results and the chart")
    parser.add_argument("--keep", type=Path, help="earlier results; their other models stay in the table")
    options = parser.parse_args()
    for given, known in ((options.models, SUITE), (options.rivals, RIVALS)):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"{', '.join(unknown)} is unknown. Choose from {', '.join(known)}.")
    return options


def _setups(found: dict[str, Any]) -> str:
    """Return the setup time of each rival in words."""
    taken = {rival: numbers.get("setup_s") for rival, numbers in found["rivals"].items()}
    return "(setup: " + ", ".join(f"{rival} {s:.1f}" for rival, s in taken.items() if s) + ")"


def main() -> None:
    options = parse()
    warnings.simplefilter("ignore")
    suite = small_suite() if options.small else SUITE
    Runner.clock = staticmethod(CLOCKS[options.clock])
    if options.threads:
        torch.set_num_threads(options.threads)
    kept = ("clock", "rounds", "epochs", "warm_rounds", "settle", "settle_s", "warmup", "batches", "budget")
    measured = {key: getattr(options, key) for key in kept}
    earlier = json.loads(options.keep.read_text())["models"] if options.keep else {}
    results: dict[str, Any] = {"settings": {"device": options.device, **measured}, "models": earlier}
    title = f"train_step{'_small' if options.small else ''}_{options.device.partition(':')[0]}"
    title += "_time" if options.clock == "cpu" else ""
    facts = machine()
    for name in options.models:
        started = time.perf_counter()
        found = contest(suite[name], options)
        found["measured"] = {"commit": facts["commit"], "date": facts["date"], **measured}
        earlier[name] = found
        results["models"] = {name: earlier[name] for name in SUITE if name in earlier}
        forget()
        # After every model, so that an interrupted run keeps its results.
        path = write_results(title, results, folder=options.json)
        print(f"{name}: {time.perf_counter() - started:.0f} s {_setups(found)}", flush=True)
    print(table(*times(results)), table(*ratios(results)), sep="\n\n")
    for line in [*notes({"machine": facts, **results}), steadiness_note(results), identity_note(results)]:
        if line:
            print(line)
    path.with_suffix(".svg").write_text(chart({"machine": facts, **results}))
    print(f"wrote {path} and {path.with_suffix('.svg').name}")


if __name__ == "__main__":
    main()
