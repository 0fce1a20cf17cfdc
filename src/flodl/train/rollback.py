"""What happens when a loss or a gradient is no longer a number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flodl.checkpoint import read_bundle
from flodl.core import NotFiniteError

from .state import load_weights

if TYPE_CHECKING:
    from .run import Run

MAX_ROLLBACKS = 3


def meet_not_finite(run: Run, skipped: int) -> None:
    """Stop, or go back to the last bundle and on with the next batches; the weights are good either way."""
    what = (
        f"the loss or the gradients were not finite in {skipped} of the updates up to {run.updates}. "
        "Those updates were skipped, so the weights are good."
    )
    directory, bundle, advice = run.directory, None, ""
    if run.settings.nan == "rollback" and directory is not None:
        if run.num_rollbacks < MAX_ROLLBACKS:
            directory.close()
            bundle = directory.find().bundle
        advice = (
            f"The run went back {run.num_rollbacks} times already. "
            if run.num_rollbacks
            else "There is no bundle yet to go back to. "
        )
    if bundle is None:
        raise NotFiniteError(
            f"{what} {advice}Lower the learning rate or clip the gradients; with nan='skip' training goes on."
        )
    run.num_rollbacks += 1
    count = run.train_step.num_skipped
    skipped_so_far = count.clone()
    load_weights(run, read_bundle(bundle, verify=False))
    # The bundle knows of fewer; what happened since has happened, though its updates are undone.
    count.copy_(skipped_so_far)
    if run.watch is not None:
        run.watch.forget()
    run.count_updates()
    run.tell("alert", message=f"{what} Went back to step {bundle.step}.", level="warning")
