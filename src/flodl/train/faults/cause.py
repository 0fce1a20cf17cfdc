"""Explains a non-finite loss or gradient: the module, the samples of the batch, and the last good bundle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flodl.core import log
from flodl.engine import NonFinite, find_non_finite

from ..batches.recent import RecentBatch, RecentBatches
from ..evaluation.evaluator import as_arguments
from ..saving.run_folder.directory import RunDirectory
from ..session import Session

MAX_SAMPLES = 16
# The target that torch's losses and transformers leave out, unless told otherwise.
IGNORED_TARGET = -100


@dataclass(frozen=True)
class Cause:
    """What is known about a non-finite value: text, path of the module, samples, last bundle, advice."""

    text: str = ""
    path: str = ""
    samples: tuple[int, ...] = ()
    bundle: Path | None = None
    advice: str = "Lower the learning rate or clip the gradients."
    # Whether a parameter is not finite, so that skipping an update does not help.
    in_weights: bool = False


def explain(
    session: Session, recent: RecentBatches, directory: RunDirectory | None, *, since: int, ends: bool
) -> Cause:
    """Run the batches after an update again until one is not finite, and describe where it was.

    Batches that were not kept are read again if the run `ends`: a loader that is in use cannot do that.
    """
    suspects = recent.since(since)
    found, place, batch = _find(session, recent, suspects, ends=ends)
    bundle = None if directory is None else _last_bundle(directory)
    sentences = []
    samples: list[int] = []
    if found is not None and place is not None:
        samples = recent.samples_of(place)
        sentences.append(f"When the batch is run again, {found.what}.")
        sentences.append(_describe_batch(place, samples, found.rows))
    elif len(suspects) == 1 or (suspects and suspects[0].batch is not None):
        place = suspects[-1]
        samples = recent.samples_of(place)
        sentences.append("When the batch is run again, everything is finite.")
        sentences.append(_describe_batch(place, samples, ()))
    elif suspects:
        first, last = suspects[0], suspects[-1]
        sentences.append(f"It was one of the batches {first.step} to {last.step} of epoch {last.epoch + 1}.")
    if bundle is not None:
        sentences.append(f"The last good bundle is {str(bundle)!r}.")
    path = "" if found is None else found.path
    cause = Cause(" ".join(sentences), path, tuple(samples), bundle)
    if found is not None and found.advice:
        return replace(cause, advice=found.advice)
    if found is not None and found.in_batch:
        return replace(cause, advice="Remove or repair these samples.")
    if _is_bad_parameter(session, path):
        return replace(cause, advice=_advice_for_weights(session), in_weights=True)
    if found is not None and any(map(_is_ignored, pytree.tree_leaves(batch))):
        advice = (
            f"All targets of this batch are {IGNORED_TARGET}, which the losses of torch ignore, so the loss "
            "is a mean over zero targets. Leave out samples without targets, or return the sum of the losses "
            "(reduction='sum') divided by the number of samples."
        )
        return replace(cause, advice=advice)
    return cause


def _is_ignored(part: Any) -> bool:
    """Return whether a part of a batch has nothing but targets that losses leave out.

    >>> _is_ignored(torch.tensor([-100, -100])), _is_ignored(torch.tensor([-100, 1]))
    (True, False)
    """
    is_integer = isinstance(part, Tensor) and part.dtype in (torch.int64, torch.int32)
    return is_integer and part.numel() > 0 and bool((part == IGNORED_TARGET).all())


def _is_bad_parameter(session: Session, path: str) -> bool:
    parameter = dict(session.model.named_parameters()).get(path)
    return parameter is not None and not bool(parameter.detach().isfinite().all())


def _advice_for_weights(session: Session) -> str:
    if session.updates <= int(session.train_step.num_skipped):
        return "It was already not finite before the first update: check how it is initialized or loaded."
    return "An earlier update or your own code caused this: lower the learning rate or clip the gradients."


def _in_batch(found: NonFinite, batch: tuple[Any, ...]) -> NonFinite:
    """Blame the batch if one of its parts is not finite though no module shows it, as for targets."""
    if found.in_batch or found.advice:
        return found
    for index, part in enumerate(batch):
        for tensor in pytree.tree_leaves(part):
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.is_sparse:
                continue
            if bool((bad := tensor.isnan() if found.path else ~tensor.isfinite()).any()):
                rows = bad.reshape(len(bad), -1).any(1).nonzero().flatten().tolist() if bad.dim() else []
                seen = found.what if found.path else "every module returned finite values"
                what = f"part {index} of the batch is not finite; {seen}"
                return replace(found, what=what, rows=tuple(rows), in_batch=True)
    return found


def _find(
    session: Session, recent: RecentBatches, suspects: list[RecentBatch], *, ends: bool
) -> tuple[NonFinite | None, RecentBatch | None, Any]:
    """Return the first non-finite value, its place, and the batch."""
    for place in suspects:
        try:
            batch = recent.read(place) if ends else place.batch
            found = None
            if batch is not None and (found := find_non_finite(session.train_step, as_arguments(batch))):
                is_weight = _is_bad_parameter(session, found.path)
                found = found if is_weight else _in_batch(found, as_arguments(batch))
        except Exception as error:
            # The report about the run must not fail because of the search for its cause.
            log.debug("the search for a non-finite value: %s: %s", type(error).__name__, error)
            continue
        if found is not None:
            return found, place, batch
    return None, None, None


def _describe_batch(place: RecentBatch, samples: list[int], rows: tuple[int, ...]) -> str:
    """Describe a batch: its number, its samples, and those of its rows that are not finite."""
    where = f"It is batch {place.step} of epoch {place.epoch + 1}"
    if not samples:
        bad = f"; not finite: rows {_listed(rows)}" if rows else ""
        return f"{where}{bad}."
    text = f"{where}, with the samples {_listed(samples)}"
    bad_samples = [samples[row] for row in rows if row < len(samples)]
    if bad_samples and len(bad_samples) < len(samples):
        names = "sample" if len(bad_samples) == 1 else "samples"
        text += f"; not finite: {names} {_listed(bad_samples)}"
    return f"{text}."


def _listed(numbers: list[int] | tuple[int, ...]) -> str:
    """Return a few numbers, then a count.

    >>> _listed([3, 1, 2])
    '3, 1, 2'
    >>> _listed(range(100))
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 84 more'
    """
    shown = ", ".join(map(str, numbers[:MAX_SAMPLES]))
    more = len(numbers) - MAX_SAMPLES
    return f"{shown} and {more} more" if more > 0 else shown


def _last_bundle(directory: RunDirectory) -> Path | None:
    """Return the newest intact bundle, after pending saves."""
    directory.wait()
    bundle, _ = directory.find()
    return None if bundle is None else bundle.path
