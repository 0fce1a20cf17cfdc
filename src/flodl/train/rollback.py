"""What happens when a loss or a gradient is no longer a number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flodl.core import NotFiniteError

from .keeping import read_parts
from .state import load_weights

if TYPE_CHECKING:
    from .trainer import Trainer

MAX_ROLLBACKS = 3


def meet_not_finite(trainer: Trainer, skipped: int) -> None:
    """Stop, or go back to the last bundle and on with the next batches; the weights are good either way."""
    what = (
        f"the loss or the gradients were not finite in {skipped} of the updates up to {trainer.updates}. "
        "Those updates were skipped, so the weights are good."
    )
    directory, bundle, advice = trainer._directory, None, ""
    if trainer._settings.nan == "rollback" and directory is not None:
        if trainer._rollbacks < MAX_ROLLBACKS:
            directory.close()
            bundle = directory.find()
        advice = (
            f"The run went back {trainer._rollbacks} times already. "
            if trainer._rollbacks
            else "There is no bundle yet to go back to. "
        )
    if bundle is None:
        raise NotFiniteError(
            f"{what} {advice}Lower the learning rate or clip the gradients; with nan='skip' training goes on."
        )
    trainer._rollbacks += 1
    load_weights(trainer, read_parts(bundle))
    trainer._updates = trainer.updates
    trainer._tell("alert", message=f"{what} Went back to step {bundle.step}.", level="warning")
