"""The time of a reduction between three ranks, and the time to recover from a rank that is killed in it.

    python benchmarks/reduction.py [--millions 0.27,1,10,25] [--rounds 9] [--ranks 3] [--kills 5]

A reduction is `Reducer.reduce` and `commit`: from the weights of the model to the weights of the model, with
divergence. It is compared with bare `all_reduce` calls of gloo on the same number of weights, as one vector
and tensor by tensor, which neither weight nor check anything. A sample is the time of the slowest rank.

Recovery is measured from the SIGKILL of one rank in the middle of a reduction to the commit of the repeated
reduction on all others. The parent process notices the loss, and publishes the next generation in the store.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, Timing, table, take_turns, write_results
from torch import nn
from torch.distributed import PrefixStore, ProcessGroupGloo

from flodl.distributed.coordination import Reduce
from flodl.distributed.reduction import FlatState, Reducer, ReductionFailed, cancel, connect_store, host_store

WIRES = ("fp32", "bf16")
RIVALS = {
    "flodl fp32": "flodl, fp32",
    "flodl bf16": "flodl, bf16",
    "flat": "all_reduce, one vector",
    "tensors": "all_reduce, per tensor",
}
TENSORS = 65


def make_model(millions: float) -> nn.Module:
    """Return a model with 65 parameters, as ResNet-20 has."""
    model = nn.Module()
    size = max(1, int(millions * 1e6) // TENSORS)
    for index in range(TENSORS):
        model.register_parameter(f"weight_{index}", nn.Parameter(torch.randn(size) * 0.02))
    return model


def train(model: nn.Module, index: int) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1e-4 * (index + 1)


class Rank:
    """One rank: rivals that reduce the same model."""

    def __init__(self, index: int, size: int, port: int) -> None:
        self.index, self.members = index, tuple(range(size))
        self.store = connect_store(port)
        self.num_meetings = 0

    def meet(self) -> float:
        """Wait until all ranks are ready, and return the time."""
        self.num_meetings += 1
        name = f"meeting {self.num_meetings}"
        self.store.add(name, 1)
        while int(self.store.add(name, 0)) < len(self.members):
            time.sleep(0.0005)
        return time.monotonic()

    def start(self, model: nn.Module, wire: str, generation: int) -> Reducer:
        """Every member receives the weights of the first one."""
        reducer = Reducer(FlatState.of(model), wire=wire)
        reducer.rebuild(self.store, generation, self.index, self.members, 60.0)
        bases = (0, *[-1] * (len(self.members) - 1))
        reducer.reduce(self.command(0, generation, weight=0, bases=bases))
        reducer.commit()
        return reducer

    def command(
        self, window: int, generation: int, *, weight: int = 1, bases: tuple[int, ...] = (), attempt: int = 0
    ) -> Reduce:
        members, num = self.members, len(self.members)
        bases = bases or (window,) * num
        return Reduce(window, generation, attempt, members, (weight,) * num, bases, members[0], 60e3, "test")

    def times(self, millions: float, rounds: int) -> dict[str, Any]:
        """Return the seconds of each rival in each round, and the bytes that this rank sends."""
        model = make_model(millions)
        num_bytes: dict[str, int] = {}
        rivals: dict[str, Callable[[int], list[float]]] = {}
        for generation, wire in enumerate(WIRES, 1):
            reducer = self.start(model, wire, generation)

            def reduce(repeats: int, reducer: Reducer = reducer, generation: int = generation) -> list[float]:
                return [self.reduce(model, reducer, generation, num_bytes) for _ in range(repeats)]

            rivals[f"flodl {wire}"] = reduce
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1", lazy_init=False)]
        group = gloo(PrefixStore("bare", self.store), self.index, len(self.members), options)
        flat = torch.randn(sum(parameter.numel() for parameter in model.parameters()))
        tensors = [parameter.detach().clone() for parameter in model.parameters()]
        rivals["flat"] = lambda repeats: [self.all_reduce(group, [flat]) for _ in range(repeats)]
        rivals["tensors"] = lambda repeats: [self.all_reduce(group, tensors) for _ in range(repeats)]
        timings = take_turns(rivals, rounds=rounds, settle=1)
        seconds = {name: timing.samples_s for name, timing in timings.items()}
        return {"seconds": seconds, "num_bytes": num_bytes}

    def reduce(self, model: nn.Module, reducer: Reducer, generation: int, num_bytes: dict[str, int]) -> float:
        train(model, self.index)
        # The model was reduced by the other wire since: what it holds is all progress.
        command = self.command(reducer.version, generation)
        started = self.meet()
        num_bytes[WIRES[generation - 1]] = reducer.reduce(command).num_bytes
        reducer.commit()
        return time.monotonic() - started

    def all_reduce(self, group: Any, tensors: list[torch.Tensor]) -> float:
        started = self.meet()
        for tensor in tensors:
            group.allreduce([tensor]).wait()
        return time.monotonic() - started

    def recover(self, millions: float) -> dict[str, Any]:
        """Be killed as the last rank, or survive: return when the repeated reduction was committed."""
        model = make_model(millions)
        reducer = self.start(model, "fp32", 1)
        # The first reduction allocates memory.
        train(model, self.index)
        reducer.reduce(self.command(1, 1))
        reducer.commit()
        train(model, self.index)
        self.meet()
        if self.index == self.members[-1]:
            threading.Thread(target=self._end).start()
        failed_s = None
        try:
            reducer.reduce(self.command(2, 1))
        except ReductionFailed:
            failed_s = time.monotonic()
        while not self.store.check(["generation 2"]):
            time.sleep(0.0005)
        published_s = time.monotonic()
        self.members = self.members[:-1]
        reducer.rebuild(self.store, 2, self.index, self.members, 60.0)
        reducer.reduce(self.command(2, 2, attempt=1))
        reducer.commit()
        return {"committed_s": time.monotonic(), "failed_s": failed_s, "published_s": published_s}

    def _end(self) -> None:
        # A reduction of 25 M parameters takes more than 100 ms.
        time.sleep(0.05)
        self.store.set("killed", str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)


def start_ranks(size: int, port: int, *words: str) -> list[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--ranks", str(size), "--port", str(port), *words]
    return [
        subprocess.Popen([*command, "--rank", str(index)], stdout=subprocess.PIPE, text=True)
        for index in range(size)
    ]


def measure(millions: float, options: argparse.Namespace) -> dict[str, Any]:
    """Return the timings of the slowest rank in each round."""
    store = host_store()
    ranks = start_ranks(
        options.ranks, store.port, "--millions", str(millions), "--rounds", str(options.rounds)
    )
    found = [json.loads(rank.communicate()[0]) for rank in ranks]
    seconds = {
        name: Timing(tuple(max(each) for each in zip(*[one["seconds"][name] for one in found])))
        for name in RIVALS
    }
    return {
        "millions": millions,
        "ms": {name: 1e3 * timing.median_s for name, timing in seconds.items()},
        "jitter": {name: timing.jitter for name, timing in seconds.items()},
        "megabytes_sent": {wire: num / 1e6 for wire, num in found[0]["num_bytes"].items()},
    }


def recover(millions: float, size: int) -> dict[str, float]:
    """Kill one rank in a reduction; return the milliseconds since then."""
    store = host_store()
    ranks = start_ranks(size, store.port, "--millions", str(millions), "--recover")
    ranks[-1].wait()
    cancel(store, 1)
    store.set("generation 2", "1")
    found = [json.loads(rank.communicate()[0]) for rank in ranks[:-1]]
    killed_s = float(store.get("killed"))
    failed = [each["failed_s"] for each in found if each["failed_s"] is not None]
    return {
        "failed_ms": 1e3 * (max(failed, default=killed_s) - killed_s),
        "published_ms": 1e3 * (max(each["published_s"] for each in found) - killed_s),
        "committed_ms": 1e3 * (max(each["committed_s"] for each in found) - killed_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--millions", default="0.27,1,10,25", help="sizes in millions of parameters")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument(
        "--kills", type=int, default=5, help="how often recovery is measured, at the last size"
    )
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--recover", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [float(word) for word in options.millions.split(",")]
    if options.rank is not None:
        rank = Rank(options.rank, options.ranks, options.port)
        print(json.dumps(rank.recover(sizes[0]) if options.recover else rank.times(sizes[0], options.rounds)))
        sys.stdout.flush()
        rank.meet()
        return
    results = [measure(millions, options) for millions in sizes]
    rows = [
        [f"{one['millions']:g} M", *[f"{one['ms'][name]:.1f} ms" for name in RIVALS],
         *[f"{one['megabytes_sent'][wire]:.1f} MB" for wire in WIRES]]
        for one in results
    ]  # fmt: skip
    print(table(["parameters", *RIVALS.values(), "sent, fp32", "sent, bf16"], rows))
    recovered = [recover(sizes[-1], options.ranks) for _ in range(options.kills)]
    for name in recovered[0] if recovered else ():
        taken = sorted(one[name] for one in recovered)
        print(f"{sizes[-1]:g} M, {name}: median {statistics.median(taken):.0f}, worst {taken[-1]:.0f}")
    print(write_results("reduction_cpu", {"reductions": results, "recovery": recovered}, folder=options.json))


if __name__ == "__main__":
    main()
