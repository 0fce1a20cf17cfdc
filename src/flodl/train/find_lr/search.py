"""Train a copy of the model with a rising learning rate; the run itself does not change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from flodl.core import TrainError, log
from flodl.core.integers import as_integer, as_number, is_integer, is_number
from flodl.core.rng_state import preserve_rng_state
from flodl.data import Loader
from flodl.engine import NoGradient, NotRestorable, TrainStep, report_elsewhere, sandbox, trial_copy

from ..batches.loaders import Loaders
from ..evaluation.evaluator import as_arguments
from ..session import Session
from .result import FindLrResult

# The mean that decides about stopping forgets a loss with this factor per update.
_MEMORY = 0.9
_MIN_UPDATES = 10


def find_lr(
    session: Session,
    loaders: Loaders,
    data: Any,
    batch_size: int | None,
    *,
    min_lr: float,
    max_lr: float,
    num_steps: int,
    stop_factor: float | None,
) -> FindLrResult:
    """Run the search; see `Trainer.find_lr`."""
    num_steps, min_lr, max_lr = as_integer(num_steps), as_number(min_lr), as_number(max_lr)
    _check(min_lr, max_lr, num_steps, stop_factor)
    if not session.train_step.is_between_updates:
        raise TrainError(
            "find_lr was called inside an accumulation window. Call it before fit, or after an update."
        )
    rates = [min_lr * (max_lr / min_lr) ** (at / (num_steps - 1)) for at in range(num_steps)]
    rates[-1] = max_lr
    with _restored(session), loaders.for_trial(data, batch_size) as loader:
        step = trial_copy(session.train_step, schedule=lambda at: rates[min(at, num_steps - 1)])
        report_elsewhere(step)
        try:
            losses, stopped = _train(step, loader, rates, stop_factor)
        except NoGradient as error:
            raise TrainError(
                "find_lr trains a copy of the model, and none of its parameters received a gradient: the "
                "step function uses a model other than its first argument, such as a global one. Use the "
                "first argument. If it does, the loss does not depend on the parameters of the optimizer."
            ) from error
        finally:
            step.close()
    return FindLrResult.of(rates[: len(losses)], losses, stopped=stopped)


def _train(
    step: TrainStep, loader: Loader, rates: list[float], stop_factor: float | None
) -> tuple[list[float], str]:
    """Return the loss before each update, and why the search ended early, or ""."""
    losses: list[float] = []
    mean, best = 0.0, math.inf
    batches, accumulate = _endless(loader), step.settings.accumulate
    for at, rate in enumerate(rates):
        window = [step(*as_arguments(next(batches))).detach() for _ in range(accumulate)]
        loss = float(torch.stack(window).double().mean())
        losses.append(loss)
        # In fp16, the first updates are skipped until the scale of the loss is found.
        is_skipped = step.settings.precision != "fp16" and bool(step.skipped)
        if at == 0 and (is_skipped or not math.isfinite(loss)):
            what = "gradients of the first loss are not finite"
            what = what if math.isfinite(loss) else f"first loss is {loss}"
            raise TrainError(
                f"find_lr: the {what}, before any update, whatever the learning rate. Look for NaN and "
                "infinite values in the data, the weights and the step function."
            )
        if not math.isfinite(loss):
            return losses, f"The loss was not finite at lr={rate:.2g}"
        if is_skipped:
            return losses, f"The gradients were not finite at lr={rate:.2g}"
        mean = _MEMORY * mean + (1 - _MEMORY) * loss
        current = mean / (1 - _MEMORY ** (at + 1))
        best = min(best, current)
        if stop_factor is not None and at >= _MIN_UPDATES:
            scale = max(abs(best), abs(losses[0]) / 4)
            if current > best + (stop_factor - 1) * scale:
                return losses, f"The loss diverged at lr={rate:.2g}"
    return losses, ""


def _endless(loader: Loader) -> Iterator[Any]:
    """Yield batches, epoch after epoch."""
    num_batches = 0
    while True:
        before = num_batches
        for batch in loader:
            num_batches += 1
            yield batch
        if num_batches == before:
            raise TrainError("find_lr: the data has no batch.")


@contextmanager
def _restored(session: Session) -> Iterator[None]:
    """Restore the random state, and what the step function changes outside the copied model."""
    with ExitStack() as stack:
        stack.enter_context(preserve_rng_state(session.device))
        try:
            stack.enter_context(sandbox(session.train_step))
        except NotRestorable as reason:
            log.debug("find_lr: what the step function changes is not restored: %s", reason)
        yield


def _check(min_lr: float, max_lr: float, num_steps: int, stop_factor: float | None) -> None:
    if not (is_number(min_lr) and is_number(max_lr) and 0 < min_lr < max_lr < math.inf):
        raise TrainError(
            f"find_lr(min_lr={min_lr!r}, max_lr={max_lr!r}). Use numbers with 0 < min_lr < max_lr."
        )
    if not is_integer(num_steps, at_least=_MIN_UPDATES):
        raise TrainError(f"find_lr(num_steps={num_steps!r}). Use an integer of at least {_MIN_UPDATES}.")
    if stop_factor is not None and not (is_number(stop_factor) and stop_factor > 1):
        raise TrainError(f"find_lr(stop_factor={stop_factor!r}). Use a number above 1, or None.")
