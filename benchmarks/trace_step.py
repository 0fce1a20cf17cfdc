"""Count the Python calls inside flodl that one training batch takes on the eager tier.

    python benchmarks/trace_step.py [--json] [--list]

A batch is everything between two calls of the step function in steady state. "Returns" counts the
transitions into a file that was visited and left before, so it measures how often a reader who follows one
batch has to go back to an earlier file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import flodl
from flodl import Trainer, TrainStep

SOURCE = Path(flodl.__file__).parent
BATCH_SIZE = 32
TRACED_CALL = 20  # steady state: the optimizer has its state, and every check that runs once is done
NUM_BATCHES = TRACED_CALL + 4


class Call(NamedTuple):
    """A call of a function in flodl."""

    file: str
    function: str


class Tracer:
    """Record the calls between two calls of a step function."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._num_steps = 0

    def step_fn(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Compute the loss, and record the calls from the traced step to the next one."""
        self._num_steps += 1
        if self._num_steps == TRACED_CALL:
            sys.setprofile(self._profile)
        elif self._num_steps == TRACED_CALL + 1:
            sys.setprofile(None)
        return (model(x) - y).square().mean()

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(SOURCE):
                self.calls.append(Call(str(path.relative_to(SOURCE)), frame.f_code.co_qualname))


def trace_fit() -> list[Call]:
    """Trace a batch of `Trainer.fit`."""
    tracer = Tracer()
    model, data = _model_and_data()
    trainer = Trainer(
        model,
        tracer.step_fn,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3),
        device="cpu",
        tier="eager",
        monitor=False,
    )
    trainer.fit(data, epochs=1, batch_size=BATCH_SIZE)
    return tracer.calls


def trace_train_step() -> list[Call]:
    """Trace a batch of a bare `TrainStep`."""
    tracer = Tracer()
    model, data = _model_and_data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = TrainStep(model, optimizer, tracer.step_fn, tier="eager")
    for batch in zip(*(tensor.split(BATCH_SIZE) for tensor in data)):
        step(*batch)
    return tracer.calls


def _model_and_data() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    num_samples = BATCH_SIZE * NUM_BATCHES
    return model, (torch.randn(num_samples, 8), torch.randn(num_samples, 1))


def summarize(calls: list[Call]) -> dict[str, int]:
    """Return the number of calls, of files, and of returns to a file already left.

    >>> summarize([Call("a", "f"), Call("a", "g"), Call("b", "f"), Call("a", "f"), Call("b", "g")])
    {'calls': 5, 'files': 2, 'returns': 2}
    """
    returns = 0
    left: set[str] = set()
    current = ""
    for file, _ in calls:
        if file != current:
            returns += file in left
            left.add(current)
            current = file
    return {"calls": len(calls), "files": len({file for file, _ in calls}), "returns": returns}


TRACES: dict[str, Callable[[], list[Call]]] = {"Trainer.fit": trace_fit, "TrainStep": trace_train_step}


def main() -> None:
    """Print the counts of both traces, and with --list every call."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument("--list", action="store_true", help="print every call, in order")
    options = parser.parse_args()
    traces = {name: trace() for name, trace in TRACES.items()}
    counts = {name: summarize(calls) for name, calls in traces.items()}
    if options.json:
        print(json.dumps(counts, indent=2))
        return
    print(f"{'one batch of':<14}{'calls':>8}{'files':>8}{'returns':>9}")
    for name, count in counts.items():
        print(f"{name:<14}{count['calls']:>8}{count['files']:>8}{count['returns']:>9}")
    if options.list:
        for name, calls in traces.items():
            print(f"\n{name}")
            for file, function in calls:
                print(f"  {file:<36}{function}")


if __name__ == "__main__":
    main()
