"""What several devices cannot do, refused before any rank starts."""

from __future__ import annotations

from collections.abc import Sequence

from torch.utils.data import DataLoader

from flodl.core import NotFiniteError, TrainError
from flodl.data import Loader
from flodl.distributed.supervisor import CommitReport

from ..callbacks.dispatch import Hooks
from ..faults.nonfinite import OVERFLOWS_IN_A_ROW
from ..saving.check import outside_model
from ..session import Session
from ..settings import TrainerSettings

_ONE_DEVICE = "Train on one device, or leave it out."


def check_settings(settings: TrainerSettings) -> None:
    """Raise for settings that several devices do not have yet."""
    if settings.ema is not None:
        raise TrainError(f"ema={settings.ema} is not available with several devices. {_ONE_DEVICE}")
    if settings.nan == "rollback":
        raise TrainError("nan='rollback' is not available with several devices. Use 'stop' or 'skip'.")


def not_on_ranks(method: str) -> TrainError:
    """Return the error for a loop of the user on several devices."""
    return TrainError(
        f"trainer.{method}() trains in this process, and with several devices every batch is trained in "
        "another one. Use trainer.fit(…), or one device."
    )


def check_session(session: Session, hooks: Hooks) -> None:
    """Raise for hooks and parameters that ranks would not see."""
    if hooks.has("on_step_end"):
        raise TrainError(
            "a hook has on_step_end, which is called after every batch, and with several devices batches are "
            "trained in other processes. Use on_epoch_end, or train on one device."
        )
    if outside := outside_model(session):
        raise TrainError(
            f"the optimizer has {len(outside)} parameters that are not in the model, and several devices "
            "average the parameters of the model only. Make them parameters of the model."
        )


def check_data(loader: Loader) -> None:
    """Raise for data that cannot be read at any position."""
    if isinstance(loader.torch_loader, DataLoader):
        raise TrainError(
            "the training data is a torch DataLoader, whose batches cannot be divided among several devices. "
            "Pass its dataset: fit(loader.dataset, batch_size=…), or a flodl Loader over it."
        )
    if not loader.has_positions or loader.batch_size is None or loader.num_samples is None:
        raise TrainError(
            "the training data is an iterable, and several devices need data with a length, to read any part "
            "of it. Pass tensors, arrays, or a dataset with __getitem__ and __len__, and a batch_size."
        )


def check_skipped(
    session: Session, report: CommitReport, skipped: int, *, on: Sequence[int], row: int
) -> int:
    """Raise if updates were skipped because something was not finite, unless that is allowed.

    `on` is the ranks whose own loss or gradients were not finite, if that is known. The loss scale of fp16 is
    found by trying, so `row` counts how many were skipped in a row there.
    """
    if session.settings.nan == "skip":
        return 0
    updates = sum(batches for _, _, batches, _ in report.work)
    if session.train_step.settings.precision == "fp16":
        row = row + skipped if skipped >= updates else 0
        skipped = row if row >= OVERFLOWS_IN_A_ROW else 0
    if skipped:
        ranks = sorted({*on} or {rank for rank, *_ in report.work})
        where = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        raise NotFiniteError(
            f"the loss or the gradients were not finite in {skipped} of the {updates} updates before update "
            f"{report.committed}, on {where}. Those updates were skipped. Train on one device to see "
            "the cause, or use nan='skip' to continue."
        )
    return row
