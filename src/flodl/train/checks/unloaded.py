"""An evaluation of a model whose run has saves, none of which was loaded."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flodl.checkpoint import Bundle, list_bundles, read_bundle
from flodl.core import CheckpointError

from ..run import Run
from ..saving.run_folder.missing_run import similar_folders


def note_unloaded_saves(run: Run) -> None:
    """Say once that an untrained model is evaluated although its folder has saves of other weights, or none.

    This is a note: a program may evaluate the initial weights each time it starts, before `fit` resumes.
    """
    directory, session = run.directory, run.session
    if directory is None or session.updates or session.epochs or "unloaded saves" in run.reported:
        return
    run.reported.add("unloaded saves")
    directory.wait()
    with suppress(CheckpointError, OSError):
        if not directory.path.is_dir() or not any(directory.path.iterdir()):
            _note_missing(run, directory.path)
            return
        bundles = list_bundles(directory.bundles) if directory.bundles.is_dir() else []
        if bundles and not any(_has_weights_of(session.model, one) for one in reversed(bundles)):
            run.reports.note(
                "evaluate: the weights are those of the model that was passed to the Trainer, not those of "
                f"the run in {str(directory.path)!r}, up to step {bundles[-1].step}, which was not loaded. "
                "To evaluate the run, call trainer.restore_best() for its best weights, or "
                "trainer.resume(train_data, batch_size) for its last ones, before evaluate."
            )


def _note_missing(run: Run, folder: Path) -> None:
    """Say that the folder has no run, and name one with a similar name."""
    state = "is empty" if folder.is_dir() else "does not exist"
    meant = similar_folders(folder)
    run.reports.note(
        f"evaluate: checkpoint_dir {str(folder)!r} {state}, so the weights are those of the model that was "
        f"passed to the Trainer.{' ' * bool(meant)}{meant}"
    )


def _has_weights_of(model: nn.Module, bundle: Bundle) -> bool:
    """Return whether a bundle contains the parameters of a model, or their average."""
    saved = read_bundle(
        bundle, parts=[one for one in ("model", "average") if one in bundle.parts], verify=False
    )
    own = dict(model.named_parameters())
    return any(_is_equal(own, weights) for weights in saved.values())


def _is_equal(own: dict[str, nn.Parameter], saved: Any) -> bool:
    return isinstance(saved, dict) and all(
        isinstance(saved.get(name), Tensor) and torch.equal(one.detach().cpu(), saved[name])
        for name, one in own.items()
    )
