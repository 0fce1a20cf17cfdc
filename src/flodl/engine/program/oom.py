"""What to do when a batch runs out of memory: split it and run it in pieces, with the same gradients."""

from __future__ import annotations

from typing import Any

from ..batch.samples import is_packed, why_not_splittable
from .program import StepBody


def split_further(body: StepBody, batch: tuple[Any, ...], samples: int, *, opens: bool) -> str | None:
    """Undo a micro-batch that ran out of memory, to run it in more pieces, or return what would help."""
    if is_packed(batch):
        return (
            "A packed batch, which has several texts in one row, cannot be split. Use a smaller batch_size "
            "and a larger accumulate, or padded batches: model.dataset(…, pack=False)."
        )
    if why_not := why_not_splittable(batch, samples):
        return (
            f"The batch cannot be split: {why_not}, so it is not known where to split it. "
            "Use smaller batches, or tensors with one row per sample."
        )
    if body.pieces >= samples:
        return (
            "A single sample needs more memory than there is. Use precision='bf16', a smaller model, or "
            "torch.utils.checkpoint inside the model."
        )
    if opens:
        body.updater.drop_gradients()
    elif body.progress.is_writing:
        return (
            "Memory ran out during the backward of a micro-batch that was not the first of its "
            "accumulation window. Its gradients cannot be separated from the earlier ones, so the window "
            "was dropped. Use smaller batches and a larger accumulate."
        )
    body.undo.undo(opens=opens)
    body.pieces = min(2 * body.pieces, samples)
    return None
