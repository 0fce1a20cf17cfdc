"""The loaders of a trainer: passed by the user, or built once over data and reused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import DataLoader

from flodl.core import CursorError, DataError, TrainError, log
from flodl.core.formats import a_type
from flodl.core.integers import as_integer
from flodl.data import Loader

from ..checks.evaluation_samples import uncounted_samples
from ..session import Session
from .batch_lists import USUAL, Usual, hint_at_batches
from .cursor import BatchCursor
from .samples import Batches, with_num_samples

# The result of an evaluation does not depend on it.
EVALUATION_BATCH_SIZE = 256


@runtime_checkable
class PreciseData(Protocol):
    """Data whose batches depend on the precision of the training, such as texts that may be packed."""

    def with_precision(self, precision: str) -> Any:
        """Return the same data for training with this precision."""
        ...


@runtime_checkable
class ModelData(Protocol):
    """Data that is made for a model, such as the token ids of texts."""

    def check_model(self, model: Any) -> None:
        """Raise if the data was made for another model."""
        ...


class Loaders:
    """Return the loaders for training and for evaluation.

    A loader built over data is reused, so that a resident dataset is copied to the device once, and a loop
    that was left early continues at the same position. Data that was written to is copied again.
    """

    def __init__(self, session: Session, cursor: BatchCursor) -> None:
        self._session, self._cursor = session, cursor
        self._training_data: tuple[Any, int | None] | None = None
        self._evaluation: Loader | None = None
        self._evaluation_data: tuple[Any, int | None] | None = None
        # The loader that was used last, of the user or of this object.
        self.evaluation: Loader | None = None
        # The loader that was moved to the position of a saved run.
        self._restored: Loader | None = None
        self._warned_of_uncounted = False
        # An iterator whose first batch was read by the dry pass, and all of its batches.
        self._peeked: tuple[Any, Batches] | None = None

    def for_training(self, data: Any, batch_size: int | None, *, epoch: int) -> Loader:
        """Return the loader that was passed, or one over the data that starts at an epoch."""
        session, batch_size = self._session, _check_batch_size(data, batch_size)
        seed = session.settings.seed
        if isinstance(data, Loader):
            if data is not session.loader:
                self._check_loader(data)
                _check_seed(data, seed)
                self._move_new(data, epoch)
                session.loader, self._training_data = data, None
        elif session.loader is None or not _same_data((data, batch_size), self._training_data):
            loader = self._build(data, batch_size, seed=seed)
            if not self._continue_restored(loader):
                loader.set_epoch(epoch)
            session.loader, self._training_data = loader, (_shallow_copy(data), batch_size)
        elif session.loader.is_stale and not self._cursor.is_iterating:
            state = self._cursor.release(session.loader)
            session.loader = None  # first, so that the device need not have room for both
            session.loader = self._build(data, batch_size, seed=seed)
            session.loader.load_state_dict(state)
        assert session.loader is not None
        if not self._cursor.is_iterating:
            self._cursor.return_to(session.loader)
        return session.loader

    @contextmanager
    def for_trial(self, data: Any, batch_size: int | None) -> Iterator[Loader]:
        """Provide a loader for a trial, after which every loader is where it was.

        The loader of the training is used if it reads the same data: it may hold them on the device.
        """
        session, batch_size = self._session, _check_batch_size(data, batch_size)
        own, is_new = session.loader, False
        if isinstance(data, Loader):
            self._check_loader(data)
            loader = data
        elif own is not None and not own.is_stale and _same_data((data, batch_size), self._training_data):
            loader = own
        else:
            loader, is_new = self._build(data, batch_size, seed=session.settings.seed), True
        if loader.is_one_shot:
            raise TrainError(
                "the data is an iterator, and a trial would use up its batches. Pass something that can be "
                "iterated again, such as a list."
            )
        with nullcontext() if is_new else loader.preserved_position():
            yield loader

    def _move_new(self, loader: Loader, epoch: int) -> None:
        """Move a loader that was never read to the epoch of the run, or to where the one before it stopped.

        A program may create a loader for each epoch: every epoch has an order of its own nevertheless.
        """
        session, before = self._session, self._session.loader
        if loader.epoch or loader.position or loader.is_one_shot or self._continue_restored(loader):
            return
        if before is not None and not before.is_one_shot and not self._cursor.is_iterating:
            state = self._cursor.state_dict(before)
            if state["position"] and _reads_the_same(loader, before):
                self._cursor.release(before)
                loader.load_state_dict(state)
                return
        # The batches of an epoch whose end was interrupted are not read again.
        epoch += session.position.open_row is not None
        if epoch:
            loader.set_epoch(epoch)

    def _continue_restored(self, loader: Loader) -> bool:
        """Move a loader into the epoch in which a run was saved, if it was resumed with other data.

        A program that trains on other data from some epoch on cannot know which before it has resumed.
        """
        before, session = self._restored, self._session
        if before is None or before is not session.loader or self._cursor.has_read(before):
            return False
        state = before.state_dict()
        if not state["position"]:
            return False
        loader.load_state_dict(state)
        return True

    def restore_training(self, loader: Loader, state: Mapping[str, Any]) -> None:
        """Move the loader to a saved state; raise CursorError if the order was drawn with another seed."""
        seed, given = state.get("seed"), self._session.settings.seed
        if given is not None and seed not in (None, given) and loader.depends_on_seed:
            raise CursorError(
                f"the order of the data was drawn with seed {seed}, and this is Trainer(seed={given}). "
                f"Nothing was loaded. Use Trainer(seed={seed}) or omit seed, or choose a different "
                "checkpoint_dir."
            )
        loader.load_state_dict(state)
        self._restored = loader
        self._cursor.forget()

    def peek_evaluation(self, data: Any) -> tuple[Any, int | None] | None:
        """Return the first batch of an evaluation with its number of samples; None if there is none.

        An evaluation of an iterator that follows still gets this batch.
        """
        with hint_at_batches(data):
            batches = iter(self.evaluation_batches(data)())
            first = next(batches, None)
        is_one_shot = data.is_one_shot if isinstance(data, Loader) else isinstance(data, Iterator)
        if first is not None and is_one_shot:
            self._peeked = data, chain([first], batches)
        return first

    def evaluation_batches(self, data: Any, batch_size: int | Usual | None = USUAL) -> Callable[[], Batches]:
        """Return a function that reads the data from the start."""
        peeked, self._peeked = self._peeked, None
        if peeked is not None and peeked[0] is data:
            return lambda: peeked[1]
        loader = self.for_evaluation(data, batch_size)
        if loader.is_one_shot and self._session.average is not None:
            raise TrainError(
                "the evaluation data is an iterator, which can be read once, and with ema= they are read "
                "twice: for the weights and for their average. Pass something that can be iterated again, "
                "such as a list."
            )
        return lambda: with_num_samples(_at_start(loader), self._cursor.counts)

    def for_evaluation(self, data: Any, batch_size: int | Usual | None = USUAL) -> Loader:
        """Return a loader at the start of the data; with None, a list is read as a list of batches."""
        return _at_start(self.evaluation_loader(data, batch_size))

    def evaluation_loader(self, data: Any, batch_size: int | Usual | None = USUAL) -> Loader:
        """Return the loader of `for_evaluation`, which may be in the middle of its data."""
        whole_batches = isinstance(data, list) and (
            batch_size is None or (batch_size == USUAL and self._trains_on_batches)
        )
        batch_size = None if isinstance(batch_size, str) and batch_size == USUAL else batch_size
        training, batch_size = self._session.loader, _check_batch_size(data, batch_size)
        if isinstance(data, Loader):
            if data is training:
                raise TrainError("this loader feeds the training. Use a separate loader for evaluation.")
            self._check_loader(data)
            self._warn_of_uncounted(data)
            self.evaluation = data
            return data
        self._warn_of_uncounted(data)
        if batch_size is None and not isinstance(data, DataLoader) and not whole_batches:
            usual = None if training is None else training.batch_size
            batch_size = usual or EVALUATION_BATCH_SIZE
        if self._evaluation is not None and self._evaluation.is_stale:
            self._evaluation = None
        if self._evaluation is None or not _same_data((data, batch_size), self._evaluation_data):
            # The same for every run, if the data is random.
            order = {} if isinstance(data, DataLoader) else {"shuffle": False}
            with _named_as_evaluation():
                self._evaluation = self._build(data, batch_size, seed=0, **order)
            self._evaluation_data = (_shallow_copy(data), batch_size)
        self.evaluation = self._evaluation
        return self._evaluation

    def _warn_of_uncounted(self, data: Any) -> None:
        """Warn once if an evaluation does not count each sample once."""
        warnings = [] if self._warned_of_uncounted else [*uncounted_samples(data)]
        self._warned_of_uncounted |= bool(warnings)
        for warning in warnings:
            log.warn("%s", warning)

    def _build(self, data: Any, batch_size: int | None, **order: Any) -> Loader:
        self._check_made_for_model(data)
        if isinstance(data, PreciseData):
            data = data.with_precision(self._session.train_step.settings.precision)
        return Loader(data, batch_size, device=self._session.device, **order)

    @property
    def _trains_on_batches(self) -> bool:
        """Whether the training data is a list of batches."""
        if self._training_data is None:
            return False
        trained, size = self._training_data
        return isinstance(trained, list) and size is None

    def _check_made_for_model(self, data: Any) -> None:
        if isinstance(data, ModelData):
            data.check_model(self._session.model)

    def _check_loader(self, loader: Loader) -> None:
        device = self._session.device
        self._check_made_for_model(loader.arguments()["source"])
        if loader.device != device:
            raise TrainError(
                f"the loader returns batches on {loader.device}, and the model is on {device}. "
                "Write Loader(…, device=trainer.device)."
            )


def _check_batch_size(data: Any, batch_size: int | None) -> int | None:
    """Return the size of the batches to make: None if the data already consists of batches."""
    if isinstance(batch_size, str):
        raise TrainError(f"batch_size={batch_size!r} is a string. Pass an integer, such as batch_size=32.")
    batch_size = as_integer(batch_size)
    if hasattr(batch_size, "shape") or isinstance(batch_size, Sequence):
        raise TrainError(
            f"batch_size is {a_type(batch_size)}. Pass inputs and targets as one dataset: (x, y)."
        )
    if not isinstance(data, Loader | DataLoader):
        return batch_size
    if batch_size not in (None, data.batch_size):
        raise TrainError(
            f"batch_size={batch_size} was given with {a_type(data)} whose batch_size is "
            f"{data.batch_size}. Omit batch_size, or pass the data instead of the loader."
        )
    return None


def _reads_the_same(one: Loader, other: Loader) -> bool:
    """Return whether two loaders yield the same batches, apart from the seed of their order."""
    if (one.batch_size, one.drop_last) != (other.batch_size, other.drop_last):
        return False
    return one.contents == other.contents


def _check_seed(loader: Loader, seed: int | None) -> None:
    """Raise if the trainer has a seed but the loader's seed determines the batches."""
    if seed not in (None, loader.seed) and loader.depends_on_seed:
        raise TrainError(
            f"Trainer(seed={seed}) with a Loader whose seed is {loader.seed}. The loader makes the "
            f"order: write Loader(…, seed={seed}), or omit the seed of the trainer."
        )


@contextmanager
def _named_as_evaluation() -> Iterator[None]:
    """Say in an error about data that it is the evaluation data, not that of the training."""
    try:
        yield
    except DataError as error:
        raise type(error)(f"the evaluation data cannot be used: {error}") from error


@contextmanager
def preserve_position(data: Any) -> Iterator[None]:
    """Restore the position of a loader when the context ends."""
    is_loader = isinstance(data, Loader) and not data.is_one_shot
    with data.preserved_position() if is_loader else nullcontext():
        yield


def check_repeatable(eval_data: Any) -> None:
    """Raise if data for several evaluations can be iterated only once."""
    once = eval_data.is_one_shot if isinstance(eval_data, Loader) else isinstance(eval_data, Iterator)
    if once:
        raise _exhausted()


def check_several_epochs(loader: Loader) -> None:
    """Raise if training data for several epochs can be iterated only once."""
    if loader.is_one_shot:
        raise TrainError(
            "the training data is an iterator, such as a generator or zip(…), which is exhausted after one "
            "epoch. Pass something that can be iterated again, such as a list or an object with __iter__, "
            "or train for one epoch. Nothing was trained."
        )


def _at_start(loader: Loader) -> Loader:
    if loader.is_one_shot and (loader.epoch or loader.position):
        raise _exhausted()
    loader.set_epoch(0)
    return loader


def _exhausted() -> TrainError:
    return TrainError(
        "the evaluation data is an iterator, which is exhausted after one epoch. "
        "Pass something that can be iterated again, such as a list or an object with __iter__."
    )


def num_batches(loader: Loader) -> int | None:
    """Return the number of batches in an epoch, or None if it is unknown."""
    try:
        return len(loader)
    except TypeError:
        return None


def _shallow_copy(data: Any) -> Any:
    """Return a list or dictionary with the same items that the caller cannot change."""
    if type(data) is list:
        return list(data)
    return dict(data) if isinstance(data, Mapping) else data


def _same_data(one: tuple[Any, int | None], other: tuple[Any, int | None] | None) -> bool:
    """Return whether these are the same objects; a new tuple or dictionary of the same parts counts too."""
    if other is None or one[1] != other[1]:
        return False
    new, old = one[0], other[0]
    if type(new) is type(old) and isinstance(new, tuple | list):
        return len(new) == len(old) and all(a is b for a, b in zip(new, old))
    if isinstance(new, Mapping) and isinstance(old, Mapping):
        return list(new) == list(old) and all(new[name] is old[name] for name in new)
    return new is old
