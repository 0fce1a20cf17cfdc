"""What `TrainStep` itself costs the host: a call over a bare replay, and the first step over eager's.

    python benchmarks/step_overhead.py [--rounds 200] [--calls 20] [--processes 5]

The first step is taken in fresh processes, where it is what a user waits for, and in a warm one, where the
set-up of torch and CUDA does not hide what is ours. Calls are made on an idle device and timed until the
last one returns, not until the device is done: a model so small that the launch is all there is to see.
The eager tier is compared with a plain loop in CPU time, in turns. Without CUDA only these are measured.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, Timing, paired_difference, table, take_turns, timed, wait, write_results
from models import SUITE, Reference, graphs
from models.by_hand import mlp
from torch import Tensor, nn

from flodl import TrainStep

TINY = Reference(partial(mlp, 32, 64), partial(graphs.mlp, 32, 64), (32, 32), (32, 32))


Step = Callable[[Tensor, Tensor], object]
Start = Callable[..., Step]


def train_step(model: nn.Module, tier: str, reference: Reference = TINY) -> TrainStep:
    optimizer = torch.optim.Adam(model.parameters(), lr=reference.lr)
    return TrainStep(model, optimizer, lambda model, x, y: reference.loss(model(x), y), tier=tier)


def eager_step(model: nn.Module, reference: Reference = TINY) -> Step:
    """The same step as a plain loop has it, with the optimizer that `TrainStep` chooses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=reference.lr, fused=next(model.parameters()).is_cuda)

    def run(x: Tensor, y: Tensor) -> None:
        loss = reference.loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


def host_time(call: Callable[[], object], calls: int, repeats: int) -> list[float]:
    """Seconds of the host for one call, with an idle device before each sample."""
    taken = []
    for _ in range(repeats):
        wait()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        taken.append((time.perf_counter() - started) / calls)
    return taken


def call_cost(device: str, rounds: int, calls: int) -> dict[str, Timing]:
    """Time a bare replay, one with fresh inputs, and the step, all over the same recording."""
    from flodl.engine.capture.mailbox import SLOTS
    from flodl.engine.capture.recording import Recording

    x, y = TINY.batches(1, device)[0]
    step = train_step(TINY.flow(device), "captured")
    while step.tier != "captured" or step.report().step_s is None:
        step(x, y)
        if step.report().steps > 100:
            raise SystemExit(f"the step was not captured: {step.report()}")
    gc.collect()
    # The step keeps its recording to itself; it is the only one in this process.
    (recording,) = (found for found in gc.get_objects() if type(found) is Recording)
    # A bare replay posts no addresses. After so many steps those of an earlier turn are wherever it looks.
    for _ in range(SLOTS):
        step(x, y)

    def bare_time(repeats: int) -> list[float]:
        taken = host_time(recording.graph.replay, calls, repeats)
        if recording.mailbox is not None:
            # It knows nothing of these.
            recording.mailbox.free.clear()
            recording.mailbox.begin_lap()
        return taken

    timers = {
        "bare replay": bare_time,
        "inputs and replay": partial(host_time, lambda: recording.replay([x, y]), calls),
        "TrainStep": partial(host_time, lambda: step(x, y), calls),
    }
    for timer in timers.values():
        timer(10)
    return take_turns(timers, rounds=rounds)


def cpu_time(call: Callable[[], object], calls: int, repeats: int) -> list[float]:
    """Seconds of CPU time for one call; other processes on the machine do not count."""
    taken = []
    for _ in range(repeats):
        started = time.process_time()
        for _ in range(calls):
            call()
        taken.append((time.process_time() - started) / calls)
    return taken


def eager_cost(rounds: int, calls: int) -> dict[str, Timing]:
    """CPU time of a step on the eager tier and of a plain loop, for a tiny model on the CPU."""
    timers: dict[str, Callable[[int], list[float]]] = {}
    for kind, make in (("SGD", torch.optim.SGD), ("Adam", torch.optim.Adam)):
        x, y = TINY.batches(1, "cpu")[0]
        plain, ours = TINY.module("cpu"), TINY.module("cpu")
        optimizer = make(plain.parameters(), lr=TINY.lr)
        step = TrainStep(
            ours,
            make(ours.parameters(), lr=TINY.lr),
            lambda model, x, y: TINY.loss(model(x), y),
            tier="eager",
        )

        def loop(x: Tensor, y: Tensor, model: nn.Module = plain, optimizer: Any = optimizer) -> None:
            loss = TINY.loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        timers[f"plain loop, {kind}"] = partial(cpu_time, partial(loop, x, y), calls)
        timers[f"TrainStep, {kind}"] = partial(cpu_time, partial(step, x, y), calls)
    for timer in timers.values():
        timer(5)
    return take_turns(timers, rounds=rounds)


def first_step(start: Start, reference: Reference, device: str, repeats: int) -> list[float]:
    """Seconds from a model and a batch to the first updated weights."""
    x, y = reference.batches(1, device)[0]

    def once(model: nn.Module) -> None:
        start(model, reference=reference)(x, y)

    return [timed(partial(once, reference.flow(device)), 1)[0] for _ in range(repeats)]


STARTS: dict[str, Start] = {"eager": eager_step, "TrainStep": partial(train_step, tier="auto")}


def first_steps(reference: Reference, device: str, rounds: int) -> dict[str, Timing]:
    """Let a plain loop and `TrainStep` take their first step in turns, each time with a fresh model."""
    timers = {name: partial(first_step, start, reference, device) for name, start in STARTS.items()}
    for timer in timers.values():
        timer(3)
    return take_turns(timers, rounds=rounds)


def in_a_process_of_its_own(start: str, repeats: int) -> list[float]:
    """Seconds that the first step of the transformer takes where nothing ran before."""
    command = [sys.executable, __file__, "--alone", start]
    return [float(subprocess.check_output(command, text=True).split()[-1]) for _ in range(repeats)]


def promotion(device: str) -> dict[str, Any]:
    """The time of each of the first steps, waited for one by one, and the step at which the tier changed."""
    x, y = TINY.batches(1, device)[0]
    step = train_step(TINY.flow(device), "captured")
    taken, promoted = [], None
    for number in range(1, 31):
        taken += timed(partial(step, x, y), 1)
        if promoted is None and step.tier == "captured":
            promoted = number
    return {"steps_ms": [round(s * 1000, 4) for s in taken], "promoted_after": promoted}


def microseconds(timings: dict[str, Timing]) -> dict[str, dict[str, float]]:
    return {
        name: {"us": timing.median_s * 1e6, "jitter": timing.jitter, "best_us": timing.best_s * 1e6}
        for name, timing in timings.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--calls", type=int, default=20, help="calls per sample")
    parser.add_argument("--processes", type=int, default=5, help="fresh processes for each first step")
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--alone", choices=list(STARTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.alone:
        print(*first_step(STARTS[options.alone], SUITE["transformer"], device, 1))
        return
    results: dict[str, Any] = {
        "settings": {"rounds": options.rounds, "calls": options.calls, "device": device}
    }
    alone = {name: partial(in_a_process_of_its_own, name) for name in STARTS}
    results["first_step_fresh"] = microseconds(take_turns(alone, rounds=options.processes))
    print(table(["to the first step, transformer, fresh process", "µs"], rows(results["first_step_fresh"])))
    for key, reference, told in (
        ("first_step", TINY, "tiny"),
        ("first_step_transformer", SUITE["transformer"], "transformer"),
    ):
        results[key] = microseconds(first_steps(reference, device, 20 if device == "cuda" else 3))
        print(table([f"to the first step, {told}", "µs"], rows(results[key])))
    eager = eager_cost(options.rounds, options.calls)
    results["eager_cpu"] = microseconds(eager)
    print(table(["CPU time of an eager step, tiny model on the CPU", "µs"], rows(results["eager_cpu"])))
    for kind in ("SGD", "Adam"):
        ratio = eager[f"TrainStep, {kind}"].median_s / eager[f"plain loop, {kind}"].median_s
        results[f"eager_over_plain_{kind.lower()}"] = ratio - 1
        print(f"TrainStep on the eager tier over a plain loop with {kind}: {ratio - 1:.1%}")
    if device == "cuda":
        calls = call_cost(device, options.rounds, options.calls)
        over = paired_difference(calls["TrainStep"], calls["bare replay"]) * 1e6
        results["call"], results["over_bare_replay_us"] = microseconds(calls), over
        results["promotion"] = promotion(device)
        print(table(["host time of a call", "µs"], rows(results["call"])))
        print(f"TrainStep over a bare replay: {over:.1f} µs")
        slowest = max(results["promotion"]["steps_ms"])
        print(f"promoted after step {results['promotion']['promoted_after']}; slowest step {slowest:.1f} ms")
    print(f"written to {write_results(f'step_overhead_{device}', results, folder=options.json)}")


def rows(found: dict[str, dict[str, float]]) -> Sequence[list[str]]:
    return [[name, f"{taken['us']:.1f} ± {taken['jitter']:.1%}"] for name, taken in found.items()]


if __name__ == "__main__":
    main()
