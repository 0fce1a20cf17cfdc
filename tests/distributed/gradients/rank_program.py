"""What one rank does in the tests of gradient reduction: all scenarios, one after another.

    python rank_program.py RANK NUM_RANKS FOLDER

Each scenario returns what the tests compare; the results of a rank are in FOLDER/RANK.pt.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from flodl.core.log import set_verbosity
from flodl.distributed.gradients import GradientReducer
from flodl.engine import TrainStep, update_without_batch

STEPS = 50
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, eps=1e-3),
}
SIZES = (8, 3, 5)
Batch = tuple[Tensor, Tensor]


class Branches(nn.Module):
    """A branch that a batch may take, one that none takes, and a trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.branch, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, takes_branch: bool) -> Tensor:
        hidden = self.trunk(x).tanh()
        return self.head(self.branch(hidden).tanh() if takes_branch else hidden)


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))


def mse(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def batch_of(rank: int, step: int, size: int) -> Batch:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(size, 4, generator=generator), torch.randn(size, 2, generator=generator)


def digest(model: nn.Module) -> str:
    numbers = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return hashlib.sha256(numbers.numpy().tobytes()).hexdigest()


class Counted:
    """A reducer that counts its calls."""

    def __init__(self) -> None:
        self.reduce = GradientReducer(dist.group.WORLD)
        self.num_calls = 0

    def __call__(self, gradients, weight) -> None:
        self.num_calls += 1
        self.reduce(gradients, weight)


def train(
    model: nn.Module, name: str, batches, *, step_fn=mse, settings: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Train with gradients averaged over ranks; return what the tests compare."""
    reducer, optimizer = Counted(), OPTIMIZERS[name](model.parameters())
    step = TrainStep(model, optimizer, step_fn, reduce_gradients=reducer, **settings or {})
    digests = []
    for batch in batches:
        step(*batch)
        digests.append(digest(model))
    step.flush()
    return {
        "parameters": [p.detach().clone() for p in model.parameters()],
        "digests": [*digests, digest(model)],
        "num_calls": reducer.num_calls,
        "updates": step.updates,
        "num_skipped": int(step.num_skipped),
        "grad_norm": step.grad_norm,
        "tier": step.tier,
        "reason": step.report().reason,
        "started": [p in optimizer.state for p in model.parameters()],
    }


def ddp(name: str, clip_norm: float, rank: int) -> list[Tensor]:
    """Train with torch's DistributedDataParallel."""
    model = new_model()
    wrapped, optimizer = DistributedDataParallel(model), OPTIMIZERS[name](model.parameters())
    for number in range(STEPS):
        x, y = batch_of(rank, number, 8)
        optimizer.zero_grad()
        mse(wrapped, x, y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def equal_batches(name: str) -> Callable[[int, int], dict[str, Any]]:
    def scenario(rank: int, num_ranks: int) -> dict[str, Any]:
        batches = [batch_of(rank, number, 8) for number in range(STEPS)]
        result = train(new_model(), name, batches, settings={"clip_norm": 0.1})
        return result | {"ddp": ddp(name, 0.1, rank)}

    return scenario


def unequal_batches(rank: int, num_ranks: int) -> dict[str, Any]:
    batches = [batch_of(rank, number, SIZES[rank]) for number in range(STEPS)]
    return train(new_model(), "sgd", batches, settings={"clip_norm": 0.1})


def windows(rank: int, num_ranks: int) -> dict[str, Any]:
    """Windows of three micro-batches of different sizes; the last window is flushed with two."""
    batches = [batch_of(rank, number, SIZES[(rank + number) % 3]) for number in range(29)]
    return train(new_model(), "adamw", batches, settings={"accumulate": 3})


def empty_batches(rank: int, num_ranks: int) -> dict[str, Any]:
    """In every third step, rank 0 has an empty batch, whose mean is NaN."""
    sizes = [0 if rank == 0 and number % 3 == 2 else 8 for number in range(STEPS)]
    return train(new_model(), "sgd", [batch_of(rank, number, size) for number, size in enumerate(sizes)])


def ragged_and_out_of_memory(rank: int, num_ranks: int) -> dict[str, Any]:
    """Rank 0 runs out of memory in step 5; rank 1 has a ragged batch in step 7."""
    calls = {"left": 6}

    def limited(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if rank == 0:
            calls["left"] -= 1
            if calls["left"] == 0:
                raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return mse(model, x, y)

    sizes = [3 if rank == 1 and number == 7 else 8 for number in range(12)]
    batches = [batch_of(rank, number, size) for number, size in enumerate(sizes)]
    return train(new_model(), "sgd", batches, step_fn=limited)


def branches(rank: int, num_ranks: int) -> dict[str, Any]:
    """No rank takes the branch in the first 5 of 20 steps; then only one rank, in turn; then none again."""
    torch.manual_seed(0)
    takes = [5 <= number < 15 and number % num_ranks == rank for number in range(20)]

    def step_fn(model: nn.Module, x: Tensor, y: Tensor, takes_branch: bool) -> Tensor:
        return (model(x, takes_branch) - y).square().mean()

    batches = [(*batch_of(rank, number, 8), take) for number, take in enumerate(takes)]
    return train(Branches(), "adamw", batches, step_fn=step_fn)


def not_finite(where: str) -> Callable[[int, int], dict[str, Any]]:
    """The last rank has a NaN in steps 4 and 5: in the loss alone, in a gradient alone, or in its input."""

    def scenario(rank: int, num_ranks: int) -> dict[str, Any]:
        calls = {"count": 0}

        def step_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            out = model(x)
            if calls["count"] in (4, 5) and rank == num_ranks - 1:
                if where == "gradient":
                    out.register_hook(lambda gradient: gradient * torch.nan)
                elif where == "input":
                    out = out * torch.nan
            loss = (out - y).square().mean()
            if where == "loss" and calls["count"] in (4, 5) and rank == num_ranks - 1:
                loss = loss + torch.nan
            calls["count"] += 1
            return loss

        return train(new_model(), "sgd", [batch_of(rank, n, 8) for n in range(10)], step_fn=step_fn)

    return scenario


def earlier_end(rank: int, num_ranks: int) -> dict[str, Any]:
    """The data of rank 0 ends two batches early."""
    model, reducer = new_model(), Counted()
    step = TrainStep(model, OPTIMIZERS["adamw"](model.parameters()), mse, reduce_gradients=reducer)
    digests = []
    for number in range(10):
        if rank == 0 and number >= 8:
            update_without_batch(step)
        else:
            step(*batch_of(rank, number, 8))
        digests.append(digest(model))
    parameters = [p.detach().clone() for p in model.parameters()]
    return {"digests": digests, "updates": step.updates, "steps": step.steps, "parameters": parameters}


def compiled(rank: int, num_ranks: int) -> dict[str, Any]:
    """All ranks compile; then the trial of rank 0 is refused, because its step function reads an iterator."""
    zeros = iter(int, 1)

    def refused(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return mse(model, x, y) + next(zeros)

    batches = [batch_of(rank, number, 8) for number in range(20)]
    result = train(new_model(), "sgd", batches, settings={"tier": "compiled", "clip_norm": 0.1})
    step_fn = refused if rank == 0 else mse
    mixed = train(new_model(), "sgd", batches, step_fn=step_fn, settings={"tier": "compiled"})
    eager = train(new_model(), "sgd", batches, settings={"clip_norm": 0.1})
    return result | {"mixed": mixed, "eager": eager["parameters"]}


def different_layouts(rank: int, num_ranks: int) -> dict[str, Any]:
    """Rank 0 has frozen a parameter that the others train."""
    model = new_model()
    model[0].bias.requires_grad_(rank != 0)
    step = TrainStep(
        model,
        OPTIMIZERS["sgd"](model.parameters()),
        mse,
        reduce_gradients=GradientReducer(dist.group.WORLD),
    )
    try:
        step(*batch_of(rank, 0, 8))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "updates": step.updates}
    return {"error": "", "updates": step.updates}


def lost_rank(rank: int, num_ranks: int) -> dict[str, Any]:
    """The last rank ends instead of making its update."""
    if rank == num_ranks - 1:
        return {"error": "", "is_unchanged": True}
    gradients = [torch.full((1000,), float(rank))]
    reducer = GradientReducer(dist.group.WORLD)
    try:
        reducer(gradients, 8)
    except Exception as error:
        is_unchanged = bool((gradients[0] == rank).all())
        return {"error": f"{type(error).__name__}: {error}", "is_unchanged": is_unchanged}
    return {"error": "", "is_unchanged": False}


SCENARIOS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "sgd": equal_batches("sgd"),
    "adamw": equal_batches("adamw"),
    "unequal_batches": unequal_batches,
    "windows": windows,
    "empty_batches": empty_batches,
    "ragged_and_out_of_memory": ragged_and_out_of_memory,
    "branches": branches,
    "nan in loss": not_finite("loss"),
    "nan in gradient": not_finite("gradient"),
    "nan in input": not_finite("input"),
    "earlier_end": earlier_end,
    "compiled": compiled,
    "different_layouts": different_layouts,
    # Nothing can follow it.
    "lost_rank": lost_rank,
}


def trace_only() -> None:
    """Let torch's compiler trace and guard, but run torch's own kernels, so that nothing is built."""
    real = torch.compile
    torch.compile = lambda function, **_: real(  # type: ignore[assignment]
        function, dynamic=False, backend=lambda program, _: program.forward
    )


def main(rank: int, num_ranks: int, folder: Path) -> None:
    set_verbosity("quiet")
    trace_only()
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=60),
    )
    results: dict[str, Any] = {}
    for name, scenario in SCENARIOS.items():
        try:
            results[name] = scenario(rank, num_ranks)
        except Exception:
            # The other ranks wait for this one, so nothing after it can work.
            results[name] = {"failed": traceback.format_exc()}
            break
    torch.save(results, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
