"""Batches made on the host: in this process, or by workers that live as long as the loader."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Dataset

from flodl.core.errors import DataError
from flodl.core.rng_state import preserve_rng_state

from ..sampling.order import sample_keys
from ..sources.samples import Samples
from ..sources.source import Gathered

Request = tuple[list[int], list[int]]

# What a terminal or the manager of a job sends to end it.
_FOR_THE_PROGRAM = {
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)
}


class Fetcher(Dataset[Any]):
    """Turns the indices and keys of one batch into the batch."""

    def __init__(self, source: Gathered | Samples) -> None:
        self.source = source

    def __getitem__(self, request: Request) -> Any:
        indices, keys = request
        if isinstance(self.source, Samples):
            try:
                return self.source.fetch(indices, keys)
            except StopIteration as error:
                # Further out it would end the epoch, or be told as an error of a generator of ours.
                raise DataError(
                    f"{self.source.label} raised StopIteration where it made one of the samples {indices}. "
                    "Raise IndexError, or give as many samples as its length says."
                ) from error
        return self.source.take(torch.tensor(indices, dtype=torch.int64, device=self.source.device))


@dataclass(frozen=True)
class Failure:
    """An error on its way from a worker; raised there, it would cost torch five seconds to end the worker."""

    error: ExceptionWrapper


def failed() -> Failure:
    """Give the error that is being handled, to be sent."""
    return Failure(ExceptionWrapper(where="in a worker of the loader"))  # type: ignore[no-untyped-call]


class FetcherInWorker(Fetcher):
    """The same in another process."""

    def __getitem__(self, request: Request) -> Any:
        try:
            return super().__getitem__(request)
        except Exception:
            return failed()


class InProcess:
    """Makes each batch when it is asked for."""

    def __init__(self, source: Gathered | Samples) -> None:
        self._fetch = Fetcher(source)

    def batches(self, requests: Iterator[Request]) -> Iterator[Any]:
        # Only code of the user's that makes samples may draw from the global generators.
        guard = preserve_rng_state if isinstance(self._fetch.source, Samples) else nullcontext
        for request in requests:
            with guard():
                batch = self._fetch[request]
            yield batch

    def close(self) -> None:
        """Nothing runs beside."""


class Workers:
    """Answers requests in other processes, which stay from epoch to epoch; the order is that of the requests.

    The processes take turns: the first request of each call goes to the first of them.
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
            collate_fn=_as_it_is,
            worker_init_fn=_heed_the_parent_alone,
            # Its own, so that the random state of the training is not moved.
            generator=torch.Generator(),
        )

    def batches(self, requests: Iterator[Any]) -> Iterator[Any]:
        self._requests.now = requests
        # Not in a variable: the traceback of an error would keep the workers alive past close().
        for batch in self._given():
            if isinstance(batch, Failure):
                batch.error.reraise()  # type: ignore[no-untyped-call]
            yield batch

    def close(self) -> None:
        """End the processes."""
        self._loader = None

    def _given(self) -> Iterator[Any]:
        """Give what the workers send; the death of one of them becomes an error of our tree."""
        if self._loader is None:
            raise DataError("the loader was closed and has no workers any more. Make a new one.")
        try:
            yield from _begun(self._loader)
            return
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker"):
                raise
            # The signal that came first knows the exit code.
            known = error.__cause__ if isinstance(error.__cause__, RuntimeError) else error
            death = str(known).split(". ")[0].replace("DataLoader worker", "process")
        # Out here, so that this error keeps nothing alive of what torch was doing with the other workers.
        self.close()
        raise DataError(
            f"a worker of the loader has died: {death}. {_guard_advice()}It may have had too little memory, "
            "of the machine or, in a container, of what processes share (--shm-size), or the code that makes "
            "the samples ended or crashed its process. num_workers=0 shows where."
        )


def _guard_advice() -> str:
    """Say what a script needs whose main part is run again in every process that it starts."""
    method = multiprocessing.get_start_method()
    if method == "fork":
        return ""
    return (
        f"Processes are started by {method!r} here, which runs the script again in each: what begins the "
        'training belongs under `if __name__ == "__main__":`. '
    )


def _as_it_is(batch: Any) -> Any:
    return batch


def _heed_the_parent_alone(_worker: int) -> None:
    """Let signals for the whole program reach the one process that knows what to do: save, then end these.

    A terminal sends them to the group of the program, the manager of a job to each of its processes. The
    parent ends its workers by a signal, too, so they cannot just be ignored: one that is waited for says who
    sent it. A forked process, and every thread in it, has them blocked since it began.
    """
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_PROGRAM)
        threading.Thread(target=_end_when_the_parent_says_so, daemon=True).start()


@contextmanager
def _held_back() -> Iterator[None]:
    """Block the signals in this thread, so that processes that it forks begin with them blocked.

    Libraries start threads of their own in a forked process, which would take them otherwise.
    """
    if not hasattr(signal, "sigwaitinfo"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_PROGRAM)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_when_the_parent_says_so() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent.pid:
        pass
    os._exit(0)


def _begun(loader: DataLoader[Any]) -> Iterator[Any]:
    with _held_back(), warnings.catch_warnings():
        # Python 3.12 warns about every fork of a process with threads. The workers only make tensors on the
        # CPU, with one thread, as those of every torch loader.
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        return iter(loader)


class _Requests:
    """The requests of the epoch that runs now, as torch's loader wants to have them."""

    def __init__(self) -> None:
        self.now: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.now


def requests_of(order: Tensor, key: int, spans: Sequence[tuple[int, int]]) -> Iterator[Request]:
    """Give the indices and keys of each batch as plain numbers.

    >>> [indices for indices, keys in requests_of(torch.tensor([4, 2, 0, 1, 3]), 7, [(0, 2), (2, 5)])]
    [[4, 2], [0, 1, 3]]
    """
    for start, stop in spans:
        yield order[start:stop].tolist(), sample_keys(key, torch.arange(start, stop)).tolist()
