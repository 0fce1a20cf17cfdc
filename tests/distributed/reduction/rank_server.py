"""Starts rank processes quickly: it imports torch once, and forks for each rank.

It reads one request per line: the file and name of a function, and for each rank what to call it with. The
function gets a `Rank`; what it returns is saved to a file, and so is an error.
"""

import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

from flodl.distributed.coordination import Reduce
from flodl.distributed.reduction import FlatState, Reducer, connect_store


class Rank:
    """One rank in its own process; `arguments` are those of the test."""

    def __init__(self, index, size, port, arguments):
        self.index, self.size, self.arguments = index, size, arguments
        self.store = connect_store(port, timeout_s=30.0)
        self.reducer = None

    def barrier(self, name, size=None):
        """Wait for all ranks, through the store."""
        self.store.add(f"barrier/{name}", 1)
        while int(self.store.add(f"barrier/{name}", 0)) < (size or self.size):
            time.sleep(0.001)

    def start(self, model, *, generation=1, members=None, **settings):
        """Enter the first generation with a model; rank 0 has the first version."""
        self.reducer = Reducer(FlatState.of(model), **settings)
        self.enter(generation, members or tuple(range(self.size)))
        return self.reducer

    def enter(self, generation, members):
        self.reducer.rebuild(self.store, generation, self.index, members, timeout_s=20.0)

    def reduce(
        self, window, weights, bases=None, *, members=None, donor=0, attempt=0, generation=1, timeout_s=20.0,
        scale=1.0,
    ):  # fmt: skip
        members = tuple(range(self.size)) if members is None else members
        bases = tuple([window] * len(members) if bases is None else bases)
        reason = "test"
        return self.reducer.reduce(
            Reduce(
                window,
                generation,
                attempt,
                members,
                tuple(weights),
                bases,
                donor,
                timeout_s * 1e3,
                reason,
                scale,
            )
        )

    def first(self, **settings):
        """Window 0: everybody receives the weights of rank 0."""
        self.reduce(0, [0] * self.size, [0, *[-1] * (self.size - 1)], **settings)
        self.reducer.commit()

    def values(self):
        return self.reducer.state.read(self.reducer.state.empty())


def run(request, index, target):
    try:
        module = importlib.import_module(f"tests.distributed.reduction.{Path(request['file']).stem}")
        rank = Rank(index, request["size"], request["port"], request["arguments"])
        result = {"value": getattr(module, request["function"])(rank)}
    except BaseException:
        result = {"error": traceback.format_exc()}
    torch.save(result, f"{target}.part")
    Path(f"{target}.part").rename(target)


def main():
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parents[3]))
    # Children are not waited for: they leave no zombies.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        pids = []
        for index, target in zip(request["ranks"], request["targets"]):
            pid = os.fork()
            if pid == 0:
                run(request, index, target)
                os._exit(0)
            pids.append(pid)
        print(json.dumps(pids), flush=True)


if __name__ == "__main__":
    main()
