"""What happens when a loss or a gradient is no longer a number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flodl.checkpoint import Bundle, read_bundle
from flodl.core import NotFiniteError

from ..saving.bundle import load_weights
from ..saving.damaged import set_aside_and_say, what_is_wrong

if TYPE_CHECKING:
    from ..run import Run

MAX_ROLLBACKS = 3


def meet_not_finite(run: Run, skipped: int) -> None:
    """Stop, or go back to the last bundle and on with the next batches; the weights are good either way."""
    what = (
        f"the loss or the gradients were not finite in {skipped} of the updates up to {run.updates}. "
        "Those updates were skipped, so the weights are good."
    )
    bundle, advice = _last_whole(run) if run.settings.nan == "rollback" else (None, "")
    if bundle is None:
        raise NotFiniteError(
            f"{what} {advice}Lower the learning rate or clip the gradients; with nan='skip' training goes on."
        )
    now = run.train_step.state_dict()
    set_aside_and_say(run, after=bundle)
    run.num_rollbacks += 1
    parts = read_bundle(bundle, verify=False)
    # What was counted since has happened, though its updates are undone.
    parts["step"] |= {"means": now["means"], "num_skipped": now["num_skipped"]}
    load_weights(run, parts)
    run.place.measured_at = None
    if run.watch is not None:
        run.watch.forget(run.updates)
    run.count_updates()
    run.tell("alert", message=f"{what} Went back to step {bundle.step}.", level="warning")


def _last_whole(run: Run) -> tuple[Bundle | None, str]:
    """Give the newest whole bundle, or say why the run cannot go back to one."""
    assert run.directory is not None
    if run.num_rollbacks >= MAX_ROLLBACKS:
        return None, f"The run went back {run.num_rollbacks} times already. "
    run.directory.close()
    bundle, wrong = run.directory.find()
    if wrong:
        return bundle, f"To go back to there is {what_is_wrong(wrong)}. "
    return bundle, "There is no bundle yet to go back to. "
