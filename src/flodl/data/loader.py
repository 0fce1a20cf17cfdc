"""`Loader`: batches of any source, in an order that can be resumed at any position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from flodl.core import log
from flodl.core.errors import DataError
from flodl.core.integers import as_integer, as_number
from flodl.core.plain import describe
from flodl.core.rng import default_seed
from flodl.core.usage.attributes import fix_attributes
from flodl.core.usage.calls import DataCallError, explain_creation
from flodl.core.usage.tracebacks import hide_own_frames, hides_own_frames

from .augment.augmentation import as_augmentation
from .augment.repeated import warning_about_normalizing_twice
from .batch import PositionedBatch
from .cursor import Cursor, Unit
from .description import describe_augmentation, describe_source
from .loading.backend import BackendOptions, create_backend
from .loading.placement import check_memory_cap
from .loading.resident import Resident
from .randomness import depends_on_seed
from .sampling.epoch import Epoch
from .sampling.order import spans
from .sampling.samplers import (
    CustomSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    as_sampler,
    order_name,
    sampler_for_cursor,
)
from .sources import Batches, Columns, Stream, open_source
from .sources.batch_lists import warning_about_batches
from .usage import ASSIGNED_ELSEWHERE, ELSEWHERE, EXAMPLE, INSTEAD, STORED, LoaderAttributeError
from .validation import OrderArguments, check_counts, check_flags, resolve_device


@fix_attributes(
    LoaderAttributeError, called="loader", instead=INSTEAD, stored=STORED, elsewhere=ASSIGNED_ELSEWHERE
)
@explain_creation(DataCallError, elsewhere=ELSEWHERE, example=EXAMPLE)
class Loader:
    """Yields batches of a source, which is resident on the device if it fits, else streamed to it.

    Every loop yields an epoch of its own: a loop that was left early is followed by the next epoch. The
    order and all random numbers of a sample depend only on seed, epoch and position: `state_dict()` is a
    cursor, and a loader that loads it continues with the next batch.

    Without `seed`, the seed is the one last given to `flodl.manual_seed` or `torch.manual_seed` (there, below
    2**32) when the loader is created, else 0; a cursor that is loaded brings its own. Without `shuffle`,
    everything is shuffled except iterables, which `shuffle_buffer` shuffles.

    >>> loader = Loader((torch.arange(10), torch.arange(10) * 10), batch_size=4, seed=1)
    >>> for x, y in loader:
    ...     print(x.tolist(), y.tolist())
    [3, 1, 8, 7] [30, 10, 80, 70]
    [5, 6, 2, 0] [50, 60, 20, 0]
    [9, 4] [90, 40]
    >>> loader.epoch, loader.mode, loader.reason
    (1, 'resident', 'the data (160 B) is already in host memory')
    """

    def __init__(
        self,
        source: Any,
        batch_size: int | None,
        *,
        shuffle: bool | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        mode: str = "auto",
        drop_last: bool = False,
        augment: Any = None,
        sampler: Any = None,
        transform: Callable[[Any], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        names: Sequence[str] | None = None,
        num_workers: int = 0,
        prefetch: int = 2,
        memory_cap: float | int = 0.5,
        shuffle_buffer: int = 0,
    ) -> None:
        batch_size, seed, num_workers = map(as_integer, (batch_size, seed, num_workers))
        prefetch, shuffle_buffer, memory_cap = map(as_number, (prefetch, shuffle_buffer, memory_cap))
        check_counts(batch_size=batch_size, seed=seed, num_workers=num_workers, prefetch=prefetch)
        check_counts(shuffle_buffer=shuffle_buffer)
        check_flags(shuffle=shuffle, drop_last=drop_last)
        check_memory_cap(memory_cap)
        if isinstance(source, Loader):
            raise DataError("the source is a Loader, which yields batches itself. Use it directly.")
        self._source, obstacle = open_source(
            source,
            transform=transform,
            collate=collate,
            names=names,
            buffer=shuffle_buffer,
            whole_batches=batch_size is None,
        )
        OrderArguments(batch_size, shuffle, drop_last, sampler, collate, num_workers, shuffle_buffer).check(
            self._source
        )
        self._arguments = {
            "source": source, "batch_size": batch_size, "shuffle": shuffle, "mode": mode,
            "drop_last": drop_last, "augment": augment, "sampler": sampler, "transform": transform,
            "collate": collate, "names": names, "num_workers": num_workers, "prefetch": prefetch,
            "memory_cap": memory_cap, "shuffle_buffer": shuffle_buffer,
        }  # fmt: skip
        self._batch_size, self._drop_last = batch_size, bool(drop_last)
        self._seed, self._seed_was_given = default_seed() if seed is None else seed, seed is not None
        self._device = resolve_device(device, self._source)
        if isinstance(self._source, Batches) and batch_size is not None:
            self._source.prepare(batch_size, self.device)
            sampler = self._source.maker.sampler if sampler is None and shuffle is not False else sampler
        self._sampler = as_sampler(sampler, shuffle=shuffle)
        self._epoch = self._position = self._iteration = 0
        self._source_state: Any = None
        self._epoch_start: tuple[int, int, Any] = (0, 0, None)
        self._is_left_early = False
        # Each worker reads one part of an iterable; with other sources, workers do not change the order.
        self._num_parts = max(1, num_workers) if isinstance(self._source, Stream) else 1
        self._reads_in_workers = num_workers > 0
        self._check_not_empty()
        is_changed = transform is not None or collate is not None
        if batch_size and not is_changed and (warning := warning_about_batches(source, batch_size)):
            log.warn("Loader: %s", warning)
        augmentation = as_augmentation(augment)
        if warning := warning_about_normalizing_twice(augmentation):
            log.warn("Loader: %s", warning)
        options = BackendOptions(self.device, mode, num_workers, prefetch, memory_cap)
        self._placement, self._backend = create_backend(
            self._source, augmentation, options, obstacle=obstacle
        )
        self._versions = self._source.versions if isinstance(self._source, Columns) else ()

    @property
    def batch_size(self) -> int | None:
        """The number of samples in a batch; None if the source consists of batches."""
        return self._batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a last batch with fewer samples is left out."""
        return self._drop_last

    @property
    def seed(self) -> int:
        """The seed of the order: given, or of a cursor that was loaded, or the default of the program."""
        return self._seed

    @property
    def depends_on_seed(self) -> bool:
        """Whether another seed may give other batches: by their order, or by random changes of samples.

        >>> data = torch.arange(10)
        >>> Loader(data, batch_size=4).depends_on_seed, Loader(data, 4, shuffle=False).depends_on_seed
        (True, False)
        """
        return depends_on_seed(self._source, self._sampler, as_augmentation(self._arguments["augment"]))

    @property
    def device(self) -> torch.device:
        """The device of the batches."""
        return self._device

    @property
    def mode(self) -> str:
        """Where the data is: "resident" (all on the device) or "streaming"."""
        return self._placement.mode

    @property
    def reason(self) -> str:
        """Why this mode was chosen."""
        return self._placement.reason

    @property
    def is_stale(self) -> bool:
        """Whether tensors of the source were written to after the loader copied them to its device.

        Data that was not copied is never stale. Writes to NumPy arrays are not detected.
        """
        is_copy = isinstance(self._backend, Resident) and self._backend.source is not self._source
        return is_copy and isinstance(self._source, Columns) and self._source.versions != self._versions

    @property
    def epoch(self) -> int:
        """The number of the current epoch, starting at 0."""
        return self._epoch

    @property
    def position(self) -> int:
        """How many samples of this epoch have been yielded."""
        return self._position

    @property
    def num_samples(self) -> int | None:
        """How many samples an epoch has; None for an iterable without a length."""
        return self._samples_in(self._epoch, self.seed)

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        count = self.num_samples
        if count is None:
            # A TypeError, because list() asks for a length and takes that for "unknown".
            raise TypeError("the source is an iterable without a length")
        if self._num_parts > 1:
            raise TypeError("several workers read the source, and each has its own last batch")
        return len(spans(0, count, self.batch_size or 1, drop_last=self.drop_last))

    def __iter__(self) -> Iterator[Any]:
        self._iteration += 1
        return self._rest_of_epoch(self._iteration, in_loop=True)

    def with_positions(self) -> Iterator[PositionedBatch]:
        """Iterate over the rest of the epoch, over batches together with the positions after them.

        Unlike a loop over the loader itself, it continues where an earlier iteration was left.
        """
        self._iteration += 1
        return self._rest_of_epoch(self._iteration, in_loop=False)

    @property
    def is_left_early(self) -> bool:
        """Whether a loop over the loader was left within an epoch: the next loop starts the next epoch."""
        return self._is_left_early

    @hides_own_frames
    def set_epoch(self, epoch: int) -> None:
        """Move to the start of an epoch."""
        epoch = as_integer(epoch)
        check_counts(epoch=epoch)
        self._iteration += 1
        self._begin_at(epoch, 0, None)

    def rewind(self) -> None:
        """Move back to where the epoch started: position 0, or the cursor that was loaded.

        Loops that were left early do not count.
        """
        if not self.is_one_shot:
            self._iteration += 1
            self._begin_at(*self._epoch_start)

    @contextmanager
    def preserved_position(self) -> Iterator[None]:
        """Return a context that ends with the loader where it was, also if a loop was left early there."""
        before = self._epoch, self._position, self._source_state
        start, is_left_early = self._epoch_start, self._is_left_early
        try:
            yield
        finally:
            self._iteration += 1
            self._begin_at(*before)
            self._epoch_start, self._is_left_early = start, is_left_early

    @property
    def torch_loader(self) -> DataLoader[Any] | None:
        """The torch DataLoader that this loader reads, or None."""
        source = self._source.source if isinstance(self._source, Stream) else None
        return source if isinstance(source, DataLoader) else None

    @property
    def makes_own_batches(self) -> bool:
        """Whether the source makes its own batches, whose tensors may have other rows than its samples."""
        return isinstance(self._source, Batches)

    @property
    def is_one_shot(self) -> bool:
        """Whether the source is an iterator, which can be read only once."""
        return isinstance(self._source, Stream) and self._source.is_iterator

    @property
    def description(self) -> dict[str, Any]:
        """What is read and in which order, as plain data: source, samples, batch size, seed, order.

        A torch DataLoader has its own batch size. For a list of batches, only their number is known.
        """
        contents = self.contents
        return {
            **contents,
            "batch_size": contents.get("batch_size", self.batch_size),
            "drop_last": contents.get("drop_last", self.drop_last),
            "order": self._cursor_in(self._epoch, seed=self.seed, sampler=self._sampler).order,
            "seed": self.seed,
            "mode": self.mode,
        }

    @property
    def contents(self) -> dict[str, Any]:
        """What is read, as plain data: the source, a hash of its content, and the functions applied to it."""
        found = describe_source(self._source)
        if self.batch_size is None and self.torch_loader is None:
            found |= {"samples": None, "batches": found["samples"]}
        augment = getattr(self._backend, "augment", None)
        if augment is not None:
            found["augment"] = describe_augmentation(augment)
        if not isinstance(self._source, Stream) and type(self._sampler) not in (
            RandomSampler,
            SequentialSampler,
        ):
            found["sampler"] = describe(getattr(self._sampler, "source", self._sampler))
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor after the last yielded batch, as JSON-serializable data."""
        return self._cursor_in(self._epoch, seed=self.seed, sampler=self._sampler).state_dict()

    @hides_own_frames
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move to a cursor: the next batch is the one that followed it.

        If this loader was created without a seed, it continues with that of the cursor.
        """
        cursor = Cursor.read(state)
        seed = self.seed if self._seed_was_given else cursor.seed
        sampler = sampler_for_cursor(self._sampler, cursor.order, self._source.num_samples or 0)
        if self._seed_was_given and not self.depends_on_seed:
            cursor = replace(cursor, seed=seed)  # every seed has the same batches
        own = self._cursor_in(cursor.epoch, seed=seed, sampler=sampler)
        cursor.check_against(own, is_exact=not isinstance(self._source, Stream))
        if seed != self.seed:
            log.msg("Loader: the saved order continues, with seed %d; seed %d is not used", seed, self.seed)
        self._seed, self._sampler = seed, sampler
        self._iteration += 1
        self._begin_at(cursor.epoch, cursor.position, cursor.source)

    def sample_indices(self, start: int, stop: int, *, epoch: int | None = None) -> list[int] | None:
        """Return the indices in the source of the samples at these positions; None for an iterable.

        >>> Loader(torch.arange(10), batch_size=4, seed=1).sample_indices(4, 8)
        [5, 6, 2, 0]
        """
        check_counts(start=as_integer(start), stop=as_integer(stop))
        if isinstance(self._source, Stream):
            return None
        plan = replace(self._plan(), number=self._epoch if epoch is None else epoch)
        return list(plan.order(self._source.num_samples, torch.device("cpu"))[start:stop].tolist())

    def read_again(self, start: int, stop: int, *, epoch: int | None = None) -> Any:
        """Return the batch at these positions, without moving; None where that is not possible.

        It is possible for sources with a length that are read in this process. Do not call it while the
        loader is iterated.
        """
        check_counts(start=as_integer(start), stop=as_integer(stop))
        if isinstance(self._source, Stream) or self._reads_in_workers:
            return None
        number = self._epoch if epoch is None else epoch
        plan = replace(self._plan(), number=number, start=start, batch_size=stop - start, drop_last=False)
        with torch.inference_mode(False):
            item = next(self._backend.batches(plan), None)
        return None if item is None else item.batch

    def between(
        self, start: int, stop: int, *, epoch: int, batch_size: int | None = None
    ) -> Iterator[PositionedBatch]:
        """Iterate over the batches at these positions of an epoch, without moving; not for iterables.

        With `batch_size`, batches have another size, and the last one may be smaller.

        >>> loader = Loader(torch.arange(10), batch_size=4, seed=1)
        >>> [(item.batch.tolist(), item.position) for item in loader.between(4, 10, epoch=0)]
        [([5, 6, 2, 0], 8), ([9, 4], 10)]
        """
        check_counts(start=as_integer(start), stop=as_integer(stop), epoch=as_integer(epoch))
        if isinstance(self._source, Stream):
            raise DataError("an iterable cannot be read at a position. Pass data with a length.")
        plan = replace(self._plan(), number=epoch, start=start, stop=stop)
        if batch_size is not None:
            plan = replace(plan, batch_size=batch_size, drop_last=False)
        batches = self._backend.batches(plan)
        while True:
            with torch.inference_mode(False):
                item = next(batches, None)
            if item is None:
                return
            yield item

    @property
    def has_positions(self) -> bool:
        """Whether batches can be read at any position: not for an iterable."""
        return not isinstance(self._source, Stream)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that create a loader over the same data in the same order, but its device."""
        return {**self._arguments, "seed": self.seed}

    def begin_epoch(self) -> None:
        """Switch the order on the device to the current epoch, for `take`."""
        with torch.inference_mode(False):
            self._resident().begin(self._plan())

    def take(self, positions: Tensor | Sequence[int]) -> Any:
        """Return the batch at these positions of the epoch, for a step that selects its own samples.

        Only for resident data, after `begin_epoch` in each epoch; the positions are integers on the device.
        The call does not synchronize, and the tensors it reads keep their data pointers, so a captured step
        may contain it. Therefore positions beyond the epoch raise DataError only on the CPU.

        >>> loader = Loader(torch.arange(10), batch_size=4, seed=1)
        >>> loader.begin_epoch()
        >>> loader.take(torch.arange(4, 8))
        tensor([5, 6, 2, 0])
        """
        return self._resident().take(positions, self._plan())

    def close(self) -> None:
        """End the workers; the loader cannot be used afterwards."""
        self._iteration += 1
        self._backend.close()

    def __repr__(self) -> str:
        count = "?" if self._source.num_samples is None else self._source.num_samples
        unit = "batches" if self.batch_size is None else "samples"
        return (
            f"Loader({count} {unit}, batch_size={self.batch_size}, device={self.device}, "
            f"mode={self.mode!r}: {self.reason})"
        )

    def _rest_of_epoch(self, iteration: int, *, in_loop: bool) -> Iterator[Any]:
        try:
            if in_loop and iteration == self._iteration:
                self._leave_epoch()
            batches = self._backend.batches(self._plan())
            # Set for every batch, so it skips the loader's assignment check.
            own = vars(self)
            while True:
                # Outside inference mode: prefetched tensors may be used in training.
                with torch.inference_mode(False):
                    item = next(batches, None)
                if iteration != self._iteration:
                    raise _iteration_over()
                if item is None:
                    break
                own["_position"], own["_source_state"] = item.position, item.source_state
                own["_is_left_early"] = in_loop
                yield item.batch if in_loop else item
                del item  # its memory may be needed for the next one
                if iteration != self._iteration:
                    raise _iteration_over()
            self._begin_at(self._epoch + 1, 0, None)
        except BaseException as error:
            hide_own_frames(error)
            raise

    def _leave_epoch(self) -> None:
        """Move to the next epoch if batches of this one were yielded, after the cursor that was loaded.

        An iterator cannot be read from its start again, which is its own error.
        """
        if (self._is_left_early or self._position != self._epoch_start[1]) and not self.is_one_shot:
            self._epoch, self._position, self._source_state = self._epoch + 1, 0, None

    def _begin_at(self, epoch: int, position: int, source_state: Any) -> None:
        self._epoch, self._position, self._source_state = epoch, position, source_state
        self._epoch_start = (epoch, position, source_state)
        self._is_left_early = False

    def _samples_in(self, epoch: int, seed: int) -> int | None:
        count = self._source.num_samples
        if count is None or isinstance(self._source, Stream):
            return count
        if isinstance(self._sampler, CustomSampler):
            self._sampler.set_epoch(epoch)
        length = self._sampler.length(count)
        if length is None:
            length = len(self._sampler.order(count, seed=seed, epoch=epoch, device=torch.device("cpu")))
        return length

    def _plan(self) -> Epoch:
        return Epoch(
            self.seed,
            self._epoch,
            self._position,
            self.batch_size,
            self.drop_last,
            self._sampler,
            self._source_state,
        )

    def _cursor_in(self, epoch: int, *, seed: int, sampler: Sampler) -> Cursor:
        count = self._samples_in(epoch, seed)
        if isinstance(self._source, Stream):
            order = self._source.order_name
            order += f", by {self._num_parts} workers" if self._num_parts > 1 else ""
        else:
            order = order_name(sampler, self._source.num_samples)
        unit: Unit = "batches" if self.batch_size is None else "samples"
        return Cursor(seed, epoch, self._position, count, order, self._source_state, unit)

    def _resident(self) -> Resident:
        if not isinstance(self._backend, Resident):
            raise DataError(f"take needs resident data, but this loader is streaming: {self.reason}.")
        return self._backend

    def _check_not_empty(self) -> None:
        """Raise if an epoch of a source with a length has no batch."""
        if isinstance(self._source, Stream) or len(self):
            return
        if self.num_samples == 0:
            raise DataError("the sampler returned no samples. Return at least one sample index.")
        raise DataError(
            f"drop_last=True leaves no batch: {self.num_samples} samples, batch_size={self.batch_size}. "
            "Use a smaller batch_size or drop_last=False."
        )


def _iteration_over() -> DataError:
    return DataError(
        "this iteration of the loader is over: another one was started, or its cursor was moved. "
        "Use a separate loader for each concurrent loop."
    )
