"""The response to a loss or gradient that is not finite: stop, or roll back to the last bundle."""

from __future__ import annotations

from collections.abc import Callable

from flodl.checkpoint import Bundle, read_bundle
from flodl.core import NotFiniteError

from ..batches.recent import RecentBatches
from ..saving.bundle import load_weights
from ..saving.check import check_saved_run
from ..saving.run_folder.damaged import describe_damaged, move_damaged
from ..saving.run_folder.directory import RunDirectory
from ..session import Session
from .cause import explain

MAX_ROLLBACKS = 3


class NonFinitePolicy:
    """Check each update for non-finite values, and stop the run or roll it back."""

    def __init__(
        self,
        session: Session,
        directory: RunDirectory | None,
        recent: RecentBatches,
        warn: Callable[[str], None],
    ) -> None:
        self._session, self._directory, self._warn = session, directory, warn
        self.recent = recent

    def settle(self) -> None:
        """Handle every skipped update, including those that the device has not reported yet."""
        session = self._session
        if session.skipped is not None and (skipped := session.skipped.settle(session.updates)):
            self.handle(skipped)

    def handle(self, skipped: int) -> None:
        """Raise NotFiniteError, or load the last bundle and continue with the next batches.

        The weights are finite either way: the updates were skipped.
        """
        session, directory = self._session, self._directory
        what = (
            f"the loss or the gradients were not finite in {skipped} of the updates up to {session.updates}."
        )
        bundle, advice = None, ""
        if session.settings.nan == "rollback":
            assert directory is not None
            bundle, advice = self._last_intact(directory)
        ends = bundle is None or directory is None
        cause = explain(session, self.recent, directory, since=self._known_before(), ends=ends)
        state = "" if cause.in_weights else ", so the weights are those of the last finite update"
        explained = f"{what} Those updates were skipped{state}. {cause.text}".rstrip()
        if bundle is None or directory is None:
            outlook = "" if cause.in_weights else " With nan='skip', training continues."
            raise NotFiniteError(
                f"{explained} {advice}{cause.advice}{outlook}",
                path=cause.path,
                samples=cause.samples,
                bundle=cause.bundle,
            )
        now = session.train_step.state_dict()
        if message := move_damaged(directory, newer_than=bundle):
            self._warn(message)
        session.num_rollbacks += 1
        parts = read_bundle(bundle, verify=False)
        check_saved_run(session, parts)
        # The means and the count of skipped updates cover the undone updates too.
        parts["step"] |= {"means": now["means"], "num_skipped": now["num_skipped"]}
        load_weights(session, parts)
        session.position.measured_at = None
        if session.skipped is not None:
            session.skipped.forget(session.updates)
        session.updates_seen = session.updates
        self.recent.clear()
        at = f"at {cause.path!r}: " if cause.path else ""
        self._warn(f"{at}{explained} Rolled back to step {bundle.step}.")

    def _known_before(self) -> int:
        """Return the update up to which everything was known to be finite."""
        skipped = self._session.skipped
        return 0 if skipped is None else skipped.known_before

    def _last_intact(self, directory: RunDirectory) -> tuple[Bundle | None, str]:
        """Return the newest intact bundle, or None and the reason."""
        if self._session.num_rollbacks >= MAX_ROLLBACKS:
            return None, f"The run was already rolled back {self._session.num_rollbacks} times. "
        directory.close()
        bundle, damage = directory.find()
        if damage:
            return bundle, f"For a rollback there is {describe_damaged(damage)}. "
        return bundle, "There is no bundle to roll back to yet. "
