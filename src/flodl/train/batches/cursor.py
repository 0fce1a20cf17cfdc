"""The batch that is out: handed to a loop, and perhaps never trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from flodl.data import Loader

from .samples import Counts

if TYPE_CHECKING:
    from ..run import Run


class _Mark(NamedTuple):
    """Where a run stood before a batch was handed out: samples given, state of the source, batches done."""

    position: int
    source: Any
    epoch_step: int


class Handing:
    """Give the batches of a loader, and go back to one that was handed out in vain.

    An error or Ctrl-C may fall between a batch and its update. The loader counts what it has given; what
    counts here is what was trained on, back to the start of a window of accumulation that was given up.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.counts = Counts()
        # Whether a loop is being given batches.
        self.is_giving = False
        self._loader: Loader | None = None
        self._batch = self._window = _Mark(0, None, 0)
        self._updates = 0
        # The epoch of the loader, and its position behind the batch that is out.
        self._behind = (0, 0)

    def batches(self, loader: Loader) -> Iterator[Any]:
        """Give the rest of the loader's epoch."""
        run, step = self._run, self._run.train_step
        state = loader.state_dict()
        position, source, keeps_state = state["position"], state["source"], state["source"] is not None
        is_first = self.is_giving = True
        try:
            for batch in self.counts.noted(loader):
                self._batch = _Mark(position, source, run.place.epoch_step)
                self._updates = step.updates
                if step.is_between_updates:
                    self._window = self._batch
                position = loader.position
                self._loader, self._behind = loader, (loader.epoch, position)
                if is_first or keeps_state:
                    # Asked at every batch it would cost more than a small step does.
                    source = loader.state_dict()["source"]
                    is_first, keeps_state = False, source is not None
                yield batch
        except Exception:
            # A signal to every process of a job ends the workers of a loader, too.
            if not run.notice:
                raise
        else:
            self.forget()
            return
        finally:
            self.is_giving = False
        run.save_and_leave()

    def forget(self) -> None:
        """Take what was handed out for trained on."""
        self._loader = None

    def go_back(self, loader: Loader) -> None:
        """Let the loader give a batch that is out once more; an iterator has given what it gave."""
        if self._loader is not loader or loader.gives_once:
            return
        mark = self._untrained()
        if mark is not None:
            loader.load_state_dict(self._cursor(loader, mark))
            self._run.place.epoch_step = mark.epoch_step
        self.forget()

    def left(self, loader: Loader) -> dict[str, Any]:
        """Take leave of a loader, and give the place from which another one over the same data goes on."""
        mark, place = self._untrained() if self._loader is loader else None, self.cursor(loader)
        if mark is not None:
            self._run.place.epoch_step = mark.epoch_step
        self.forget()
        return place

    def give_up_window(self) -> None:
        """Take the batches of a window of accumulation that is half full for not trained on."""
        run, step = self._run, self._run.train_step
        if step.is_between_updates:
            return
        step.give_up_window()
        if self._loader is not None:
            self._batch = self._window
            run.place.epoch_step = self._window.epoch_step

    def cursor(self, loader: Loader) -> dict[str, Any]:
        """Give the place behind the last batch that was trained on."""
        mark = self._untrained() if self._loader is loader else None
        return loader.state_dict() if mark is None else self._cursor(loader, mark)

    def _cursor(self, loader: Loader, mark: _Mark) -> dict[str, Any]:
        return {**loader.state_dict(), "position": mark.position, "source": mark.source}

    def _untrained(self) -> _Mark | None:
        """Give where the batches begin that were handed out and not trained on, if any were."""
        run, loader = self._run, self._loader
        if loader is None or (loader.epoch, loader.position) != self._behind:
            return None
        if run.place.epoch_step != self._batch.epoch_step or run.train_step.updates != self._updates:
            return None
        # A window that is still open has the gradients of its batches; one that was given up has lost them.
        return self._window if run.train_step.is_between_updates else self._batch
