"""Decides when a run is saved, and saves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flodl.checkpoint import check_parts
from flodl.core import log
from flodl.core.metric_modes import Mode
from flodl.graph import Graph, structure_of

from ..batches.cursor import BatchCursor
from ..callbacks.dispatch import Hooks
from ..callbacks.patience import is_awaited
from ..callbacks.watched import how_added
from ..faults.signals import StopRequest
from ..session import Session
from .bundle import collect_parts, expected_bytes
from .run_folder.directory import RunDirectory


class Saver:
    """Save a run between two updates: now, at the end of an accumulation window, or at the end of the run.

    `settle` handles every skipped update: a run that resumes from the bundle treats all of them as handled.
    """

    def __init__(
        self,
        session: Session,
        directory: RunDirectory,
        cursor: BatchCursor,
        hooks: Hooks,
        stop_request: StopRequest,
        settle: Callable[[], None],
        *,
        modes: Mapping[str, Mode],
    ) -> None:
        self.directory = directory
        self.every_steps = session.settings.save_every_steps or 0
        # Whether to wait for, and the reason of, a save that waits for the end of a window.
        self.postponed: tuple[bool, str] | None = None
        self._session, self._cursor, self._hooks = session, cursor, hooks
        self._stop_request, self._settle, self._modes = stop_request, settle, modes
        # The updates and epochs of the last save.
        self._saved_at: tuple[int, int] | None = None
        # Looks for state that bundles lack.
        self.before_first_save: Callable[[], None] | None = None
        self._has_checked_optimizer = not session.settings.dry_pass

    def check_space(self, epochs: int) -> None:
        """Warn if the disk has no room for the saves of a run."""
        every = self._session.settings.save_every
        num_saves = None if self.every_steps else 1 if every is None else -(-epochs // every)
        self.directory.check_space(expected_bytes(self._session), num_saves=num_saves)

    def check_parts(self) -> None:
        """Raise if the state of the run cannot be saved, unless saving is off."""
        if self._session.settings.save_every or self.every_steps:
            check_parts(collect_parts(self._session, self._cursor, self._hooks))

    def save_soon(self, *, wait: bool, reason: str) -> None:
        """Save now, or at the end of the current accumulation window."""
        if self._session.train_step.is_between_updates:
            self.save(wait=wait, reason=reason)
        else:
            self.postponed = wait, reason

    def save_postponed(self) -> None:
        """Save if a save was requested within a window that has ended."""
        if self.postponed is not None:
            wait, reason = self.postponed
            self.save(wait=wait, reason=reason)

    def save_if_due(self) -> None:
        """After an update, save if a save was postponed or `save_every_steps` asks for one."""
        updates = self._session.updates_seen
        if not self._has_checked_optimizer:
            # Its state did not exist in the dry pass.
            self._has_checked_optimizer = True
            self.check_parts()
        if self.postponed is not None:
            self.save_postponed()
        elif self.every_steps and updates % self.every_steps == 0:
            self.save(wait=False, reason=f"update {updates}")

    def save(self, *, wait: bool, reason: str) -> bool:
        """Save a bundle; return whether it was waited for and is on disk."""
        session, directory = self._session, self.directory
        self.postponed = None
        if self._saved_at is None:
            # A loop without `running` does not lock the folder, and another run may have saved there since.
            directory.refuse_earlier_run()
        self._settle()
        session.leave_out_steps_outside()
        # Metrics belong to the weights that were measured: a bundle from within an epoch has none.
        measured = session.position.measured_at == session.updates
        metrics = {k: v for row in session.history[-1:] for k, v in row.items() if measured and k != "epoch"}
        directory.wait()
        if not self._stop_request:
            # Before this save replaces the previous one, or the policy deletes it.
            self.call_hooks()
            self._look_for_unsaved()
        earlier = {name for row in session.history[:-1] if directory.keep.metrics for name in row}
        awaited = {
            name
            for name in directory.keep.metrics
            if name not in metrics and is_awaited(name, metrics, how_added(name, self._hooks.all))
        }
        parts = collect_parts(session, self._cursor, self._hooks)
        parts["trainer"]["run"] = directory.identity.saved()
        # For `best_bundle` in another process, which does not have the metric objects.
        parts["trainer"]["metric_modes"] = dict(self._modes)
        model = session.model
        metadata = structure_of(model).as_metadata() if isinstance(model, Graph) else {}
        is_saved = directory.save(
            session.updates,
            parts,
            metrics,
            metadata=metadata,
            earlier=earlier | awaited,
            reason=reason,
            wait=wait,
        )
        self.mark_saved()
        if wait:
            self.call_hooks()
        return is_saved

    def _look_for_unsaved(self) -> None:
        look, self.before_first_save = self.before_first_save, None
        if look is not None:
            try:
                look()
            except Exception as error:  # raised by a user object
                log.debug("the search for unsaved state: %s: %s", type(error).__name__, error)

    def mark_saved(self) -> None:
        """Remember that the current state of the run is in a bundle."""
        self._saved_at = (self._session.updates, self._session.epochs)

    def call_hooks(self) -> None:
        """Call `on_save` for the bundles that have reached the disk, in the thread of the training.

        A bundle that was replaced or deleted in the meantime is omitted. A save begins after the hooks for
        all earlier ones, so no bundle disappears while a hook reads it.
        """
        for saved in self.directory.take_finished():
            if saved.path.is_dir():
                self._hooks.call("on_save", step=saved.step, metrics=dict(saved.metrics), path=saved.path)

    @property
    def is_behind(self) -> bool:
        """Whether saving is on, and something was trained or loaded that is not in a bundle yet."""
        session = self._session
        if not (session.settings.save_every or self.every_steps):
            return False
        is_new = self._saved_at != (session.updates, session.epochs)
        has_begun = bool(session.updates) or not session.start.is_fresh
        return is_new and has_begun and session.train_step.is_between_updates

    def save_end(self) -> None:
        """Save the final state unless it is saved already or saving is off; wait until it is on disk."""
        if self.is_behind:
            self.save(wait=False, reason="the end")
        self.directory.wait()
        self.call_hooks()
