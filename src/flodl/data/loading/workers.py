"""Make batches on the host: in this process, or in worker processes that live as long as the loader."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from flodl.core.errors import DataError
from flodl.core.rng_state import preserve_rng_state

from ..sampling.lazy_order import Order
from ..sampling.order import sample_keys
from ..sources.batches import Batches
from ..sources.samples import Samples
from ..sources.source import GatherSource
from ..worker_death import death_of_worker, explain_deaths
from ..worker_errors import Failure

Request = tuple[list[int], list[int]]

# Signals that a terminal or a job manager sends to end a program.
_PROGRAM_SIGNALS = {
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)
}


class Fetcher(Dataset[Any]):
    """Makes a batch from the indices and keys of its samples."""

    def __init__(self, source: GatherSource | Samples | Batches) -> None:
        self.source = source

    def __getitem__(self, request: Request) -> Any:
        indices, keys = request
        if isinstance(self.source, Batches):
            return self.source.maker.make(torch.tensor(indices), torch.tensor(keys))
        if isinstance(self.source, Samples):
            try:
                return self.source.fetch(indices, keys)
            except StopIteration as error:
                # An outer generator would end the epoch or raise RuntimeError.
                raise DataError(
                    f"{self.source.label} raised StopIteration while creating one of the samples {indices}. "
                    "Raise IndexError, or provide as many samples as its length says."
                ) from error
        return self.source.take(torch.tensor(indices, dtype=torch.int64, device=self.source.device))


class WorkerFetcher(Fetcher):
    """A Fetcher in a worker process, which returns errors instead of raising them."""

    def __getitem__(self, request: Request) -> Any:
        try:
            return super().__getitem__(request)
        except Exception as error:
            return Failure.of(error)


class InProcess:
    """Makes each batch in this process when it is requested."""

    def __init__(self, source: GatherSource | Samples | Batches) -> None:
        self._fetcher = Fetcher(source)

    def batches(self, requests: Iterator[Request]) -> Iterator[Any]:
        # Only user code that creates samples may use the global generators.
        guard = preserve_rng_state if isinstance(self._fetcher.source, Samples) else nullcontext
        for request in requests:
            with guard():
                batch = self._fetcher[request]
            yield batch

    def close(self) -> None:
        """Do nothing: there are no processes."""


class Workers:
    """Answers requests in worker processes, which persist across epochs, in the order of the requests.

    The workers take turns: the first request of each call goes to the first worker.
    """

    def __init__(self, fetcher: Dataset[Any], num_workers: int) -> None:
        self._requests = _Requests()
        self._loader: DataLoader[Any] | None = DataLoader(
            fetcher,
            sampler=self._requests,
            batch_size=None,
            num_workers=num_workers,
            persistent_workers=True,
            prefetch_factor=2,
            collate_fn=_identity,
            worker_init_fn=_ignore_program_signals,
            # Its own generator, so that the global RNG state does not change.
            generator=torch.Generator(),
        )

    def batches(self, requests: Iterator[Any]) -> Iterator[Any]:
        self._requests.current = requests
        # Not in a variable: the traceback of an error would keep the workers alive after close().
        for batch in self._answers():
            if isinstance(batch, Failure):
                raise batch.error()
            yield batch

    def close(self) -> None:
        """End the processes."""
        self._loader = None

    def _answers(self) -> Iterator[Any]:
        """Yield what the workers send; raise DataError if one of them dies."""
        if self._loader is None:
            raise DataError("the loader is closed and its workers have ended. Create a new one.")
        try:
            yield from _start(self._loader)
            return
        except Exception as error:
            died = death_of_worker(error, self._processes())
            if died is None:
                raise
        # Outside the handler, so that this error does not keep torch's iterator alive.
        self.close()
        raise died

    def _processes(self) -> list[Any]:
        return [*getattr(getattr(self._loader, "_iterator", None), "_workers", ())]


def _identity(batch: Any) -> Any:
    return batch


def _ignore_program_signals(_worker: int) -> None:
    """Let only the parent process handle signals to the program: it saves, then ends its workers.

    A terminal sends signals to the process group, a job manager to each process. The parent also ends its
    workers with a signal, so workers cannot just ignore them: they wait for one and check its sender. A
    forked process starts with the signals blocked, in all its threads.
    """
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, _PROGRAM_SIGNALS)
        threading.Thread(target=_exit_on_parent_sigterm, daemon=True).start()


@contextmanager
def _block_signals() -> Iterator[None]:
    """Block the signals in this thread, so that processes it forks start with them blocked.

    Otherwise, threads that libraries start in a forked process would receive them.
    """
    if not hasattr(signal, "sigwaitinfo"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PROGRAM_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_on_parent_sigterm() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent.pid:
        pass
    os._exit(0)


def _start(loader: DataLoader[Any]) -> Iterator[Any]:
    with _block_signals(), warnings.catch_warnings():
        # Python 3.12 warns about every fork of a process with threads. The workers only create tensors on the
        # CPU, with one thread, like those of every torch DataLoader.
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        batches = iter(loader)
    explain_deaths()
    return batches


class _Requests:
    """The requests of the current epoch, as a sampler for torch's DataLoader."""

    def __init__(self) -> None:
        self.current: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.current


def batch_requests(order: Order, key: int, spans: Iterable[tuple[int, int]]) -> Iterator[Request]:
    """Yield the sample indices and keys of each batch as Python integers.

    >>> [indices for indices, keys in batch_requests(torch.tensor([4, 2, 0, 1, 3]), 7, [(0, 2), (2, 5)])]
    [[4, 2], [0, 1, 3]]
    """
    for start, stop in spans:
        yield order[start:stop].tolist(), sample_keys(key, torch.arange(start, stop)).tolist()
