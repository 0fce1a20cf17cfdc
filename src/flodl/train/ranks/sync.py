"""`policy="sync"`: ranks divide each batch and average its gradients, as if one device trained the batch."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flodl.core import DistributedError, log
from flodl.core.environment import announce_rank
from flodl.distributed.coordination import Position
from flodl.distributed.coverage import Lease
from flodl.distributed.gradients import GradientTeam
from flodl.distributed.ranks import RankInfo, Trained
from flodl.engine import BatchSums, update_without_batch
from flodl.graph import graph_state, load_carried_values

from ..batches.samples import num_samples_of_batch
from ..evaluation.evaluator import as_arguments
from ..evaluation.names import SKIPPED, SKIPPED_ON
from .payload import Payload, read_payload, shared_folder
from .worker import Part, ReduceGradients, TrainerWorker

# Windows in a row that may fail before the rank gives up.
MOST_FAILURES = 3


class _Stopped(Exception):
    """The supervisor asked the rank to stop."""


@dataclass
class _Window:
    """What a window starts from, to return there if a rank is lost in it."""

    flat: Tensor
    integers: Tensor
    optimizer: dict[str, Any]
    step: dict[str, Any]
    graphs: dict[str, Any]


class SyncWorker(TrainerWorker):
    """All ranks of a window make all its updates together, each with its part of the samples.

    The weights are the same on all ranks after every update, so the mean at the end of a window changes
    nothing. If a rank is lost, the others return to the start of the window, which is trained again.
    """

    def __init__(self, info: RankInfo, payload: Payload, folder: Path | None) -> None:
        self._info = info
        self._leases: tuple[Lease, ...] = ()
        self._where = (0, 0)
        self._num_failures = 0
        super().__init__(info, payload, folder)

    def _reduce_gradients(self) -> ReduceGradients:
        info = self._info
        assert info.store is not None
        self._team = GradientTeam(
            self.state,
            rank=info.rank,
            store=info.store,
            backend=self._payload.backend,
            address=info.address,
        )
        return self._team

    def meet(self, generation: int, window: int, leases: tuple[Lease, ...]) -> None:
        """Learn who trains the next window."""
        self._where, self._leases = (generation, window), leases

    def train(self, lease: Lease, position: Position, *, should_stop: Callable[[], bool]) -> Trained:
        self._reset_carried(lease.epoch)
        start = self._remember()
        try:
            self._team.meet(*self._where, tuple(sorted(each.rank for each in self._leases)))
            self._align()
            trained = self._train_window(lease, int(position.start), should_stop)
        except (DistributedError, _Stopped) as error:
            # Others notice that this rank does not continue.
            self._team.close()
            self._return_to(start)
            if isinstance(error, DistributedError):
                self._num_failures += 1
                if self._num_failures > MOST_FAILURES:
                    raise
                log.debug("rank %d repeats a window: %s", self._info.rank, error)
            return Trained(0, 0.0)
        self._num_failures = 0
        return trained

    def _train_window(self, lease: Lease, first: int, should_stop: Callable[[], bool]) -> Trained:
        step, schedule = self._step, self._step.schedule
        step.reset_means()
        sums = BatchSums(step)
        started_s = time.perf_counter()
        for index, update in enumerate(self._parts()):
            if should_stop():
                raise _Stopped
            if schedule is not None:
                schedule.set_step(first + index)
            updates = step.updates
            for part in update:
                if part is not None:
                    step.call(as_arguments(part[0]), samples=part[1])
                sums.note(is_empty=part is None or part[1] == 0)
            if step.updates == updates:
                update_without_batch(step)
        if step.num_skipped > self._num_skipped:
            # All ranks skip the same updates, so all of them come here.
            sums.remove(self._left_out_elsewhere(sums.left_out()))
        metrics = self._metrics()
        if metrics[SKIPPED][0] and (here := sums.not_finite_here()):
            metrics[f"{SKIPPED_ON}{self._rank}"] = (float(here), 1.0)
        if self._team.index:
            # All ranks skip the same updates, which count once.
            metrics[SKIPPED] = (0.0, 1.0)
        costs = self._team.costs()
        took_ms = 1000.0 * (time.perf_counter() - started_s)
        total, weight = metrics.get("loss", (0.0, 0.0))
        loss = total / weight if weight else 0.0
        return Trained(lease.batches, took_ms, loss=loss, metrics=metrics, **costs._asdict())

    def _left_out_elsewhere(self, here: list[bool]) -> list[bool]:
        """Return the batches that another rank leaves out of the means: a batch counts as a whole."""
        return [anywhere and not own for anywhere, own in zip(self._team.any_of(here), here)]

    def _parts(self) -> Iterator[list[Part | None]]:
        """Yield this rank's part of each batch of an update, in the order of one device."""
        size = self._loader.batch_size
        assert size is not None
        unit = size * self._step.settings.accumulate
        epoch = self._leases[0].epoch + self._payload.first_epoch
        self._check_length(epoch)
        for start, stop in sorted(each for lease in self._leases for each in lease.ranges):
            for first in range(start, stop, unit):
                last = min(first + unit, stop)
                batches = [(one, min(one + size, last)) for one in range(first, last, size)]
                yield [self._read(*batch, epoch) for batch in batches]

    def _read(self, start: int, stop: int, epoch: int) -> Part | None:
        """Return this rank's part of a batch; none if the batch has fewer samples than there are ranks."""
        index, size, count = self._team.index, self._team.size, stop - start
        first, last = start + count * index // size, start + count * (index + 1) // size
        if first == last:
            return None
        (found,) = self._loader.between(first, last, epoch=epoch, batch_size=last - first)
        return found.batch, num_samples_of_batch(self._loader, found.batch, first, last, self._counts)

    def _align(self) -> None:
        """Let ranks that missed updates, because they joined or had no work, receive the optimizer state."""
        updates = self._team.gather(self._step.updates)
        if len(set(updates)) == 1:
            return
        most = max(updates)
        data = self._team.share(self.donate(), updates.index(most))
        if self._step.updates < most:
            self.receive(data)
            self._step.load_state_dict({**self._step.state_dict(), "updates": most})

    def _remember(self) -> _Window:
        return _Window(
            self.state.read(self.state.empty()),
            self.state.read_integers(),
            copy.deepcopy(self._optimizer.state_dict()),
            self._step.state_dict(),
            graph_state(self._model),
        )

    def _return_to(self, window: _Window) -> None:
        self._step.give_up_window()
        self.state.write(window.flat)
        self.state.write_integers(window.integers)
        self._load_optimizer(window.optimizer)
        self._step.load_state_dict(window.step)
        load_carried_values(self._model, window.graphs, self._device)
        self._num_skipped = window.step["num_skipped"]


def make_worker(info: RankInfo, path: str) -> TrainerWorker:
    """Create the worker of a rank from the file of the run."""
    announce_rank(info.rank, info.num_ranks)
    payload = read_payload(Path(path), torch.device(info.device))
    return _kind(payload)(info, payload, Path(path).parent)


def make_remote_worker(info: RankInfo, data: bytes) -> TrainerWorker:
    """The same on a host that does not share files with the calling process."""
    announce_rank(info.rank, info.num_ranks)
    with shared_folder() as folder:
        path = folder / "payload.pt"
        path.write_bytes(data)
        payload = read_payload(path, torch.device(info.device))
    return _kind(payload)(info, payload, None)


def _kind(payload: Payload) -> type[TrainerWorker]:
    return SyncWorker if payload.policy == "sync" else TrainerWorker
