"""What a rank trains: a replica of the model, on sample positions of the run."""

from __future__ import annotations

import hashlib
import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from flodl.core import TrainError
from flodl.core.rng import manual_seed
from flodl.data import Loader
from flodl.distributed.coordination import Position, SavePoint
from flodl.distributed.coverage import Lease
from flodl.distributed.ranks import RankInfo, Trained
from flodl.distributed.reduction import FlatState
from flodl.engine import TrainStep, report_elsewhere
from flodl.graph import reset_carried_values

from ..batches.samples import SampleCounts, num_samples_of_batch
from ..build import build_optimizer
from ..evaluation.evaluator import as_arguments
from ..evaluation.modes import restore_modes
from ..evaluation.names import NAN_ON, SKIPPED, SKIPPED_ON
from .optimizer_state import load_optimizer_state
from .payload import Payload, set_process_flags

ReduceGradients = Callable[[Sequence[Tensor], float], None]
# A micro-batch with its number of samples, and those of one update.
Part = tuple[Any, int | None]
Update = list[Part]


class TrainerWorker:
    """Trains leases with a `TrainStep`, like a trainer on one device.

    A batch of the coordinator is an update here: all micro-batches of an accumulation window.
    """

    def __init__(self, info: RankInfo, payload: Payload, folder: Path | None) -> None:
        self._folder, self._payload, self._rank = folder, payload, info.rank
        set_process_flags(payload.flags)
        self._device = torch.device(info.device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        manual_seed(seed_of(payload.seed, info.rank, payload.step_state["updates"]))
        self._model = payload.model.to(self._device)
        self.state = FlatState.of(self._model)
        self._optimizer = make_optimizer(payload, self._model)
        self._step = self._make_step(payload)
        self._load_optimizer(payload.optimizer_state)
        self._step.load_state_dict(payload.step_state)
        self._loader = Loader(**payload.data, device=self._device)
        self._counts = SampleCounts()
        # The epoch that the values carried by a graph belong to.
        self._epoch: int | None = None
        self._num_skipped = payload.step_state["num_skipped"]
        self.outer_state = payload.outer_state

    def _make_step(self, payload: Payload) -> TrainStep:
        step = TrainStep(
            self._model,
            self._optimizer,
            payload.step_fn,
            schedule=payload.schedule,
            reduce_gradients=self._reduce_gradients(),
            **payload.step_options,
        )
        report_elsewhere(step)
        return step

    def _reduce_gradients(self) -> ReduceGradients | None:
        """Return what averages gradients over ranks, if something does."""
        return None

    def train(self, lease: Lease, position: Position, *, should_stop: Callable[[], bool]) -> Trained:
        step, schedule = self._step, self._step.schedule
        step.reset_means()
        self._reset_carried(lease.epoch)
        started_s = time.perf_counter()
        first_s, waited_s, steps = started_s, 0.0, 0
        updates = self._updates(lease)
        while steps < lease.batches and not should_stop():
            asked_s = time.perf_counter()
            update = next(updates, None)
            now_s = time.perf_counter()
            if steps == 0:
                first_s = now_s
            else:
                waited_s += now_s - asked_s
            if update is None:
                break
            if schedule is not None:
                schedule.set_step(int(position.at(steps)))
            for batch, samples in update:
                step.call(as_arguments(batch), samples=samples)
            step.flush()
            steps += 1
        metrics = self._metrics()
        if metrics[SKIPPED][0]:
            metrics[f"{SKIPPED_ON}{self._rank}"] = metrics[SKIPPED]
        delivered_s = time.perf_counter() - first_s
        total, weight = metrics.get("loss", (0.0, 0.0))
        return Trained(
            steps,
            compute_ms=1000.0 * (delivered_s - waited_s),
            delivered_ms=1000.0 * delivered_s,
            fill_ms=1000.0 * (first_s - started_s),
            # The step leaves out what is not finite, so the weights are usable.
            loss=total / weight if weight else 0.0,
            metrics=metrics,
        )

    def _reset_carried(self, epoch: int) -> None:
        """Drop the values that graphs carry where an epoch begins, as on one device."""
        if epoch != self._epoch:
            self._epoch = epoch
            reset_carried_values(self._model)

    def _updates(self, lease: Lease) -> Iterator[Update]:
        """Yield the micro-batches of each update of a lease."""
        loader, epoch = self._loader, lease.epoch + self._payload.first_epoch
        self._check_length(epoch)
        accumulate = self._step.settings.accumulate
        for start, stop in lease.ranges:
            update, before = Update(), start
            for item in loader.between(start, stop, epoch=epoch):
                samples = num_samples_of_batch(loader, item.batch, before, item.position, self._counts)
                update.append((item.batch, samples))
                before = item.position
                if len(update) == accumulate or before == stop:
                    yield update
                    update = []

    def _check_length(self, epoch: int) -> None:
        loader = self._loader
        if loader.epoch == epoch:
            return
        loader.set_epoch(epoch)
        found = loader.num_samples
        if found is not None and found < self._payload.num_samples:
            raise TrainError(
                f"epoch {epoch} has {found} samples, and the first one {self._payload.num_samples}. Several "
                "devices need epochs of the same length: use a sampler with a fixed length."
            )

    def _metrics(self) -> dict[str, tuple[float, float]]:
        """Return the weighted sums since the start of the lease; this waits for the device."""
        state = self._step.state_dict()
        found: dict[str, tuple[float, float]] = {}
        for names, (weight, *sums) in state["means"]:
            for name, value in zip(names, sums):
                known = found.get(name, (0.0, 0.0))
                found[name] = (known[0] + value, known[1] + weight)
        for name in [name for name, (total, _) in found.items() if math.isnan(total)]:
            found[f"{NAN_ON}{self._rank}.{name}"] = (1.0, 1.0)
        skipped = state["num_skipped"] - self._num_skipped
        self._num_skipped = state["num_skipped"]
        return {**found, SKIPPED: (float(skipped), 1.0)}

    def told(self, data: dict[str, Any]) -> None:
        """Adopt what hooks of the calling process changed: settings of the optimizer, and modes."""
        restore_modes(self._model, data["modes"])
        for group, settings in zip(self._optimizer.param_groups, data["groups"]):
            for name, value in settings.items():
                if isinstance(group.get(name), Tensor):
                    group[name].fill_(value)
                else:
                    group[name] = value
        if self._step.schedule is not None:
            self._step.schedule.load_state_dict(data["schedule"])

    def donate(self) -> bytes:
        buffer = io.BytesIO()
        torch.save(self._own_state(), buffer)
        return buffer.getvalue()

    def receive(self, donated: bytes) -> None:
        state = torch.load(io.BytesIO(donated), map_location=self._device, weights_only=False)
        self._load_optimizer(state["optimizer"])
        own = self._step.state_dict()
        self._step.load_state_dict({**own, "scaler": state["scaler"]})

    def save(
        self, point: SavePoint, consensus: Tensor, outer: dict[str, Any], coordinator: dict[str, Any]
    ) -> str | bytes:
        """Write everything that the calling process needs to a file, and return its path.

        Without a folder that both share, return the bytes of the file.
        """
        found = {**self._own_state(), "flat": consensus.cpu(), "outer": outer, "coordinator": coordinator}
        if self._folder is None:
            buffer = io.BytesIO()
            torch.save(found, buffer)
            return buffer.getvalue()
        path = self._folder / f"version-{point.version}.pt"
        torch.save(found, path)
        return str(path)

    def _own_state(self) -> dict[str, Any]:
        return {
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._step.state_dict()["scaler"],
            "integers": self.state.read_integers().cpu(),
        }

    def _load_optimizer(self, state: dict[str, Any]) -> None:
        load_optimizer_state(self._optimizer, state)


def make_optimizer(payload: Payload, model: torch.nn.Module) -> Optimizer:
    """Return the optimizer with the rates that it had before a schedule set them."""
    optimizer = build_optimizer(payload.optimizer, model)
    schedule = payload.step_state["schedule"]
    if schedule is not None:
        for group, ratio in zip(optimizer.param_groups, schedule["ratios"]):
            group["lr"] = ratio * schedule["reference_lr"]
    return optimizer


def seed_of(seed: int, rank: int, updates: int) -> int:
    """Return the seed of a rank: dropout differs between ranks, and after a resume.

    >>> seed_of(0, 1, 0) != seed_of(0, 0, 0), seed_of(0, 1, 0) == seed_of(0, 1, 0)
    (True, True)
    """
    digest = hashlib.sha256(f"{seed}/{rank}/{updates}".encode()).digest()
    return int.from_bytes(digest[:4])
