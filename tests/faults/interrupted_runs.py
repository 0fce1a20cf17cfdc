"""Runs that are ended at chosen moments, each in its own process, and resumed in another one.

    python interrupted_runs.py FOLDER

Prints one JSON object for each case of `CASES`: how the processes ended, and the outcome of the run.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flodl import FlowBuilder, Loader, Trainer
from flodl.optim import CosineScheduler
from flodl.train import EarlyStopping

SAMPLES, BATCH, EPOCHS = 100, 8, 8  # 13 batches an epoch, the last one ragged; 104 in all


class Samples(torch.utils.data.Dataset):
    """Samples created one by one with their own random numbers, as workers create them."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(6, generator=torch.Generator().manual_seed(index)) + 0.1 * torch.rand(6)
        return x, x.sum().reshape(1)


def data_of(kind: str) -> Any:
    if kind == "workers":
        return Loader(Samples(), BATCH, num_workers=2, mode="streaming", seed=3)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 6, generator=generator)
    return x, x.sum(1, keepdim=True)


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(1)
    if kind == "graph":
        return (
            FlowBuilder(nn.Linear(6, 16)).through(nn.Dropout(0.3)).through(nn.GELU())
            .through(nn.Linear(16, 1)).tag("output").build()
        )  # fmt: skip
    layers = [nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.GELU(), nn.Linear(16, 1)]
    return nn.Sequential(*layers)


@dataclass
class Witness:
    """Writes every loss to a file, which outlives the process, and ends the run at the requested moment."""

    folder: Path
    moment: str = ""
    number: int = 0
    end: Callable[[], None] = lambda: None
    steps: int = 0
    evaluated: int = 0

    def check(self, moment: str, number: int) -> None:
        if (moment, number) == (self.moment, self.number):
            self.moment = ""
            self.end()

    def on_start(self) -> None:
        self.check("start", 0)

    def on_step_end(self, loss: Tensor) -> None:
        self.steps += 1
        with open(self.folder / "losses", "a") as file:
            file.write(f"{self.steps} {loss.item().hex()}\n")
        self.check("step", self.steps)

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: dict[str, float]) -> None:
        if hasattr(trainer.model, "record"):
            trainer.model.record("own", metrics["loss"] * 2)
        self.check("epoch", epoch)

    def on_save(self, step: int) -> None:
        self.check("save", step)

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


def send(*numbers: int, group: bool = False) -> Callable[[], None]:
    def end() -> None:
        for number in numbers:
            os.killpg(0, number) if group else os.kill(os.getpid(), number)

    return end


# What ends a process, and the exit code that should follow; a negative one is the signal that ended it.
ENDS = {
    "kill": (send(signal.SIGKILL), -9),
    "term": (send(signal.SIGTERM), 75),
    "int": (send(signal.SIGINT), 75),
    "usr1": (send(signal.SIGUSR1), 75),
    "int of the group": (send(signal.SIGINT, group=True), 75),
    # The same signal again within a second is no second request: `timeout` sends it to the group as well.
    "term twice": (send(signal.SIGTERM, signal.SIGTERM), 75),
    "int twice": (send(signal.SIGINT, signal.SIGINT), 75),
}


@dataclass
class Case:
    """The setup of a run, and how each of its processes is ended except for the last one."""

    ends: list[tuple[str, str, int]]
    data: str = "resident"
    model: str = "plain"
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name_of_twin(self) -> str:
        """Cases with the same name have the same setup, so they share one undisturbed run."""
        return repr((self.data, self.model, sorted(self.settings.items())))


CASES = {
    "killed": Case(
        [("kill", "step", 3), ("kill", "step", 37), ("kill", "evaluation", 3), ("kill", "save", 80)]
    ),
    "stopped": Case(
        [
            ("term", "start", 0),
            ("int", "step", 1),
            ("term", "step", 37),
            ("int", "evaluation", 9),
            ("term", "epoch", 4),
            ("usr1", "save", 80),
            ("term", "epoch", EPOCHS - 1),
        ]
    ),
    "stopped twice": Case([("term twice", "step", 37), ("int twice", "step", 50)]),
    "with workers": Case([("kill", "step", 37), ("int of the group", "step", 60)], data="workers"),
    "with accumulation": Case(
        # Hooks are called once per update, here of three batches.
        [("term", "step", 5), ("kill", "step", 14), ("term", "step", 23), ("int", "evaluation", 4)],
        settings={"accumulate": 3},
    ),
    "a graph": Case([("kill", "step", 37), ("term", "evaluation", 3), ("int", "step", 90)], model="graph"),
}


def train(case: Case, folder: Path, end: tuple[str, str, int] | None) -> None:
    """Train to the end, or until the witness ends the process."""
    witness = Witness(folder) if end is None else Witness(folder, end[1], end[2], ENDS[end[0]][0])
    trainer = trainer_of(case, folder, witness)
    result = trainer.fit(data_of(case.data), epochs=EPOCHS, batch_size=BATCH, eval_data=data_of("resident"))
    digest = hashlib.sha256()
    for tensor in tensors_of([trainer.model.state_dict(), trainer.optimizer.state_dict()]):
        digest.update(tensor.detach().numpy().tobytes())
    is_graph = case.model == "graph"
    outcome = {
        "weights": digest.hexdigest(),
        "average": [float(value.sum()).hex() for value in trainer.average.state_dict().values()],
        "history": result.history,
        "updates": result.steps,
        "hook_steps": witness.steps,
        "metrics": trainer.model.latest_metrics() if is_graph else {},
        "own": trainer.model.trend("own").values if is_graph else [],
    }
    (folder / "outcome.json").write_text(json.dumps(outcome))


def trainer_of(case: Case, folder: Path, witness: Witness) -> Trainer:

    def step_fn(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if not model.training:
            witness.evaluated += 1
            witness.check("evaluation", witness.evaluated)
        out = model(x)
        return nn.functional.mse_loss(out, y), {"size": out.abs().mean()}

    return Trainer(
        model_of(case.model),
        step_fn,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-2),
        schedule=CosineScheduler(1e-2, 1e-4, 110),
        clip_norm=1.0,
        tier="eager",
        device="cpu",
        monitor=False,
        checkpoint_dir=folder / "run",
        save_every_steps=10,
        ema=0.9,
        hooks=[witness, EarlyStopping("loss", patience=EPOCHS)],
        seed=3,
        **case.settings,
    )


def tensors_of(state: Any) -> Iterator[Tensor]:
    return (leaf for leaf in torch.utils._pytree.tree_leaves(state) if isinstance(leaf, Tensor))


def in_a_process(work: Callable[[], None]) -> int:
    """Run something in its own process, and return its exit code, or minus the signal that ended it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            work()
            code = 0
        except SystemExit as leaving:
            code = int(leaving.code)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def outcome_of(folder: Path) -> dict[str, Any]:
    path = folder / "outcome.json"
    outcome = json.loads(path.read_text()) if path.exists() else {}
    lines = (folder / "losses").read_text().split("\n")[:-1] if (folder / "losses").exists() else []
    losses: dict[int, set[str]] = {}
    for line in lines:
        step, loss = line.split()
        losses.setdefault(int(step), set()).add(loss)
    return {**outcome, "losses": [sorted(losses[step]) for step in sorted(losses)]}


def warm_up(folder: Path) -> None:
    """Import what a run imports late, without a backward: autograd's threads do not survive a fork."""
    trainer = trainer_of(CASES["killed"], folder, Witness(folder))
    trainer.evaluate(data_of("resident"), batch_size=BATCH)
    trainer.save()
    trainer.train_step.close()


def main(root: Path) -> None:
    torch.set_num_threads(1)  # forked processes may not share a pool of threads
    warm_up(root / "warm_up")
    gc.collect()
    gc.freeze()  # existing objects need not be visited again in every process
    twins: dict[str, Any] = {}
    for name, case in CASES.items():
        if case.name_of_twin not in twins:
            folder = root / f"undisturbed, {name}"
            folder.mkdir()
            assert in_a_process(partial(train, case, folder, None)) == 0
            twins[case.name_of_twin] = outcome_of(folder)
        folder = root / name
        folder.mkdir()
        codes = [in_a_process(partial(train, case, folder, end)) for end in [*case.ends, None]]
        ended = {
            "codes": codes,
            "expected": [*(ENDS[end[0]][1] for end in case.ends), 0],
            "outcome": outcome_of(folder),
            "undisturbed": twins[case.name_of_twin],
        }
        print(json.dumps({"name": name, **ended}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
