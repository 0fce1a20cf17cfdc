"""`TrainStep`: the whole training step in one call, and on CUDA as one captured graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.core import ScheduleError, StepError
from flodl.core.formats import a_type
from flodl.core.integers import as_integer, is_integer
from flodl.core.interrupts import uninterrupted
from flodl.core.usage.attributes import fix_attributes
from flodl.core.usage.calls import explain_calls, explain_creation
from flodl.core.usage.tracebacks import hide_own_frames
from flodl.optim import Schedule, ScheduleBridge, apply

from .batch.keywords import by_position, taking_a_dict
from .batch.sample_count import SampleCount
from .batch.samples import num_samples
from .batch.signature import Signature, signature
from .batch.time_first import samples_as_time, time_first_calls
from .device.failure import unless_device_failed
from .device.memory import memory_use
from .errors import StepAttributeError, StepCallError
from .mistake_watch import MistakeWatch
from .mistakes.advice.explain import explained
from .mistakes.creation import ASSIGNED_ELSEWHERE, ELSEWHERE, EXAMPLE, INSTEAD, how_to_read
from .mistakes.first_call import explain_loss, schedule_note
from .mistakes.losses.broadcasts import watch_broadcasts
from .mistakes.step_function import check_step_function
from .mistakes.update_errors import explained_update
from .optimizer.prepare import prepare
from .other_steps import remember_step
from .program.accumulation import Window
from .program.arguments import check_arguments, check_tail_on_ranks, check_takes_mask
from .program.outcome import Outcome
from .program.program import StepBody
from .program.progress import Count, Stage
from .program.ragged import UsualSize, padded
from .program.runner import Micro, Phase, update_strictly
from .program.saved_state import check_carried, check_saved
from .reduction.gradients import ReduceGradients
from .report import Cause, Journal, StepReport
from .settings import Guard, Precision, StepFunction, StepSettings, Tail, Tier, TierChoice, Tune
from .state.sandbox import refuse_in_sandbox
from .tiers.controller import TierController


@fix_attributes(
    StepAttributeError, called="step", instead=INSTEAD, read=how_to_read, elsewhere=ASSIGNED_ELSEWHERE
)
@explain_creation(StepCallError, elsewhere=ELSEWHERE, example=EXAMPLE)
class TrainStep:
    """Run zero-grad, forward, loss, backward, clipping, schedule and update in one call.

    Training starts immediately on the eager tier. On CUDA the same kernels are then recorded as one
    CUDA graph, compared bit for bit with eager on real batches, and replayed.

    >>> model = nn.Linear(2, 1)
    >>> step = TrainStep(
    ...     model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x, y: (m(x) - y).square().mean()
    ... )
    >>> step(torch.zeros(4, 2), torch.zeros(4, 1)).shape, step.tier
    (torch.Size([]), 'eager')
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        step_fn: StepFunction,
        *,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        precision: Precision = "fp32",
        schedule: Schedule | Callable[[int], float] | None = None,
        tier: TierChoice = "auto",
        tail: Tail = "eager",
        tune: Tune | None = None,
        tune_budget_s: float = 300.0,
        strict: bool = False,
        guard: Guard = "gradients",
        reduce_gradients: ReduceGradients | None = None,
    ) -> None:
        self._settings = StepSettings(
            clip_norm=clip_norm,
            clip_value=clip_value,
            accumulate=accumulate,
            precision=precision,
            tier=tier,
            tail=tail,
            tune=tune,
            tune_budget_s=tune_budget_s,
            strict=strict,
            guard=guard,
        )
        check_arguments(model, optimizer, step_fn)
        check_step_function(step_fn, model)
        readiness = prepare(optimizer)
        if tail == "pad":
            check_takes_mask(step_fn)
        step_fn = taking_a_dict(step_fn)
        if reduce_gradients is not None:
            check_tail_on_ranks(tail)
        self._window = Window(self._settings.accumulate)
        self._body = StepBody.create(model, optimizer, step_fn, self._settings, readiness, reduce_gradients)
        self._bridge = None if schedule is None else apply(schedule, optimizer)
        if self._bridge is not None:
            self._bridge.is_advanced = True
        self._journal = Journal()
        if self._bridge is not None and self._bridge.note:
            self._journal.add(0, "schedule", Cause.PROBABLE_MISTAKE, self._bridge.note)
        self._readiness = readiness
        self._controller = TierController(self._body, readiness, self._journal)
        self._count = Count()
        self._usual = UsualSize()
        self._sample_count = SampleCount()
        self._first_step_s: float | None = None
        self._watch = MistakeWatch(self._body, self._bridge, self._journal)
        self._calls = self._body.updater.calls
        self._calls.watch(optimizer, self._window)
        remember_step(self)

    def __getstate__(self) -> dict[str, Any]:
        # Neither a recording nor compiled code can be copied or pickled; a copy finds its own tier.
        self._controller.show_grads()
        state = {name: value for name, value in vars(self).items() if name != "_controller"}
        state["_usual"], state["_count"] = replace(self._usual, signature=None), replace(self._count)
        state["_sample_count"] = replace(self._sample_count)
        if not self.is_between_updates:
            # Torch copies a parameter without its gradient, which the current window has accumulated.
            state["_grads"] = [parameter.grad for parameter in self._body.parameters]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        grads = state.get("_grads", [])
        vars(self).update({name: value for name, value in state.items() if name != "_grads"})
        for parameter, grad in zip(self._body.parameters, grads):
            parameter.grad = grad
        # The first call of a copy is checked like that of a new step.
        self._body.updater.start_again(within_window=not self.is_between_updates)
        self._count.steps_before, self._watch.is_mode_checked = self._count.steps, False
        self._controller = TierController(self._body, self._readiness, self._journal)
        self._calls.watch(self._body.optimizer, self._window)

    @property
    def settings(self) -> StepSettings:
        """The settings of the step."""
        return self._settings

    @property
    def tier(self) -> Tier:
        """The tier that runs the next step."""
        return self._controller.tier

    @property
    def values(self) -> dict[str, Tensor]:
        """The named values that the step function returned with the loss in the last step."""
        return {name: value.clone() for name, value in self._count.values.items()}

    @property
    def grad_norm(self) -> Tensor:
        """The norm of the last update's gradients before clipping, on the device.

        It requires clip_norm; otherwise, and before the first update, it is NaN.
        """
        return self._body.updater.grad_norm.clone()

    @property
    def has_updated(self) -> bool:
        """Whether there was an update since the step was created or its state was loaded.

        Until then, `grad_norm` says nothing about the training.
        """
        return self._count.updates > self._count.loaded_updates

    @property
    def skipped(self) -> Tensor:
        """Whether the last update was skipped because something was not finite, on the device."""
        return self._body.bad.bool()

    @property
    def num_skipped(self) -> Tensor:
        """How many updates were skipped because something was not finite.

        This is the live counter on the device, which later steps change: keep `num_skipped.clone()`.
        """
        return self._body.updater.num_skipped

    @property
    def is_between_updates(self) -> bool:
        """Whether no accumulation window is half full."""
        return self._window.position == 0

    @property
    def steps(self) -> int:
        """How many batches the step has processed."""
        return self._count.steps

    @property
    def updates(self) -> int:
        """How many updates there were, skipped ones included; an accumulation window counts as one.

        This is the position of the schedule, and what `report().updates` shows. How many of them changed the
        parameters is `report().applied`, which waits for the device.
        """
        return self._count.updates

    @property
    def schedule(self) -> ScheduleBridge | None:
        """The bridge that applies the schedule to the optimizer, if a schedule was given."""
        return self._bridge

    @explain_calls(StepCallError, name="step.means", example="Write step.means().")
    def means(self) -> dict[str, Tensor]:
        """Return the means of the loss and of the named values since `reset_means`, weighted by samples.

        They are on the device; there is no host sync. Batches whose loss was not finite are left out, and
        so are values that are not single numbers. A mean over nothing is NaN.
        """
        self._warn_of_samples()
        return self._body.means.means()

    @explain_calls(StepCallError, name="step.reset_means", example="Write step.reset_means().")
    def reset_means(self) -> None:
        """Reset the means, as at the start of an epoch."""
        window, self._calls.check_at = self._window, 0
        if window.position:
            reason = (
                f"the means were reset after {window.position} of {window.accumulate} micro-batches of an "
                "accumulation window, which continues; step.flush() at the end of an epoch applies them"
            )
            self._journal.add(self._count.steps, "window", Cause.OPEN_WINDOW, reason)
        self._body.means.reset()

    def __call__(self, *batch: Any, **named: Any) -> Tensor:
        try:
            if not self._count.is_trial:
                refuse_in_sandbox()
            if named:
                batch = by_position(self._body.step_fn, batch, named)
            lane = self._controller.lane
            if lane is None or (loss := lane(batch)) is None:
                return self._run(batch)
            # The named values are where the recording put them the last time.
            count = self._count
            count.steps += 1
            count.updates += 1
            if self._bridge is not None:
                self._bridge.advance()
            return loss
        except BaseException as error:
            hide_own_frames(error)
            raise

    @explain_calls(
        StepCallError,
        name="step.call",
        example="Write step.call((x, y), samples=8), with the batch as a tuple.",
    )
    def call(self, batch: tuple[Any, ...], *, samples: int | None) -> Tensor:
        """Run one step on a batch with this many samples, if its tensors do not have one row per sample.

        >>> model = nn.GRU(3, 2)
        >>> step = TrainStep(
        ...     model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x)[0].square().mean()
        ... )
        >>> by_time = torch.zeros(7, 4, 3)
        >>> step.call((by_time,), samples=4).shape
        torch.Size([])
        """
        try:
            if not isinstance(batch, tuple | list):
                raise StepError(
                    f"call got {a_type(batch)}. Pass the arguments of the step function as a tuple: "
                    "call((x, y), samples=8)."
                )
            if samples is None:
                return self(*batch)
            if type(samples) is not int or samples < 1:
                samples = as_integer(samples)
            if not is_integer(samples, at_least=1):
                raise StepError(f"samples={samples!r}. Pass the number of samples in the batch, or None.")
            self._sample_count.is_explicit = True
            first: Any = batch[0] if batch else None
            # The usual case, without a search for the first tensor.
            has_rows = isinstance(first, Tensor) and first.dim() > 0
            if samples == (len(first) if has_rows else num_samples(batch)):
                return self(*batch)
            if not self._count.is_trial:
                refuse_in_sandbox()
            return self._run(tuple(batch), samples)
        except BaseException as error:
            hide_own_frames(error)
            raise

    def _run(self, batch: tuple[Any, ...], samples: int | None = None) -> Tensor:
        # Of this object, whose step count may have been loaded.
        started = time.perf_counter() if self._count.own_steps == 0 else 0.0
        controller, usual, progress = self._controller, self._usual, self._body.progress
        is_left_in_eval = not (self._body.model.training or self._watch.is_mode_checked)
        if is_left_in_eval or self._count.steps >= self._calls.check_at:
            self._watch.look(self._count)
        form = signature(batch)
        if samples is not None:
            # A recording is not replayed with a different weight.
            form = (*form, "samples", samples)
        if form == usual.signature:
            samples, ragged = usual.samples, False
        else:
            samples = num_samples(batch) if samples is None else samples
            ragged = self._classify(batch, form, samples)
            if ragged and self._settings.tail == "drop":
                reason = "a ragged last batch was dropped, because of tail='drop'"
                self._journal.add(self._count.steps, "dropped", Cause.RAGGED_BATCH, reason)
                usual.num_dropped += 1
                # The next batch must come by here, so that a second small one in a row is recognized.
                controller.lane = None
                return torch.full((), torch.nan, device=self._body.device)
        if self._bridge is not None:
            self._bridge.add_new_groups()
        progress.stage, counted = Stage.FORWARD, 0
        try:
            if self._window.accumulate > 1:
                with uninterrupted():
                    self._window.count(samples)
                    counted = samples
                if self.is_between_updates:
                    self._body.means.save()
                    self._calls.left = None
            micro = self._micro_batch(batch, form, samples, ragged=ragged)
            is_watched = bool(started) or self._sample_count.possible_steps is not None
            outcome = self._run_watched(micro) if is_watched else controller.run(micro, self._count.steps)
            self._count.values = outcome.values
            if self._body.undo.carried is not None:
                self._body.undo.detach_carried()
                self._body.undo.carried.note_step_from(micro.carried)
            # A recording writes the next loss to the same memory, so the caller gets a copy.
            loss = outcome.loss.clone() if controller.tier != "eager" else outcome.loss
            with uninterrupted():
                self._count_micro_batch()
                is_full = progress.stage is Stage.UPDATE_COUNTED
                if is_full and not controller.is_comparing:
                    controller.end_window(self._count.steps)
                    self._move_schedule()
            if progress.stage is Stage.UPDATE_COUNTED:
                self._end_window()
        except BaseException as error:
            stage = progress.stage
            with uninterrupted(), unless_device_failed(error):
                self._after_error(counted, self._count_micro_batch)
            if better := self._explained(error, batch, stage):
                raise better from error
            raise
        if started:
            self._first_step_s = time.perf_counter() - started
            explain_loss(loss)
        if started or self._watch.trained.is_waiting:
            self._watch.look_for_untrained(self._count)
        if not samples:
            self._watch.look_for_empty_batch(batch, loss, self._count)
        return loss

    @explain_calls(StepCallError, name="step.flush", example="Write step.flush().")
    def flush(self) -> None:
        """Apply an accumulation window that is not full, weighted by the samples it has."""
        if self.is_between_updates:
            return
        self._controller.show_grads()
        if self._bridge is not None:
            self._bridge.add_new_groups()
        self._body.progress.stage = Stage.FORWARD
        try:
            update_strictly(self._body, self._window.correction, self._window.samples)
            with uninterrupted():
                self._count_update()
            self._end_window()
        except BaseException as error:
            stage = self._body.progress.stage
            with uninterrupted(), unless_device_failed(error):
                self._after_error(0, self._count_update)
            if better := self._explained(error, (), stage):
                raise better from error
            raise

    @explain_calls(StepCallError, name="step.give_up_window", example="Write step.give_up_window().")
    def give_up_window(self) -> None:
        """Drop a half-full accumulation window: its gradients, and its part of the means."""
        self._body.updater.drop_gradients()
        if self._window.position:
            self._body.means.restore()
        self._window.close()

    @explain_calls(StepCallError, name="step.state_dict", example="Write step.state_dict().")
    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs besides model, optimizer and random state.

        These are counts, schedule, scaler and means, and a copy of the values that graphs carry.

        Call it between two updates, not in the middle of an accumulation window.
        """
        window = self._window
        if not self.is_between_updates:
            raise StepError(
                f"an accumulation window is half full ({window.position} of {window.accumulate} "
                "micro-batches), and its gradients are not part of the state. Save after an update."
            )
        body, carried = self._body, self._body.undo.carried
        return {
            "steps": self._count.steps,
            "updates": self._count.updates,
            "usual_samples": self._usual.samples,
            "after_tail": self._usual.after_tail,
            "num_dropped": self._usual.num_dropped,
            "num_skipped": int(body.updater.num_skipped),
            "means": [[list(names), total.tolist()] for names, total in body.means.totals.items()],
            "scaler": None if body.scaler is None else [tensor.item() for tensor in body.scaler.state()],
            "schedule": None if self._bridge is None else self._bridge.state_dict(),
            **({} if carried is None else {"carried": carried.state()}),
        }

    @explain_calls(StepCallError, name="step.load_state_dict", example="Write step.load_state_dict(state).")
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; load model and optimizer first. Raises if it does not match."""
        body = self._body
        check_saved(
            state,
            with_scaler=body.scaler is not None,
            with_schedule=self._bridge is not None,
            precision=self._settings.precision,
        )
        carried = body.undo.carried
        # States of earlier versions, and of trainers, do not have them.
        saved_carried = state.get("carried")
        if saved_carried is not None:
            check_carried(saved_carried, [len(one.carried) for one in carried.holders] if carried else [])
        body.updater.refresh()
        if self._bridge is not None:
            try:
                self._bridge.load_state_dict(state["schedule"])
            except ScheduleError as error:
                raise StepError(f"the state's schedule does not match: {error}") from error
        self._count.load(int(state["steps"]), int(state["updates"]))
        self._calls.check_at = 0
        self._window.close()
        # States of earlier versions do not have these keys.
        after_tail, num_dropped = bool(state.get("after_tail", False)), int(state.get("num_dropped", 0))
        self._usual = UsualSize(int(state["usual_samples"]), after_tail, num_dropped=num_dropped)
        self._sample_count = SampleCount(is_explicit=self._sample_count.is_explicit)
        self._count.is_loaded = self._count.updates > int(state["num_skipped"])
        body.updater.num_skipped.fill_(state["num_skipped"])
        self._watch.skips.forget(int(state["num_skipped"]), self._count.updates)
        body.means.load({tuple(names): numbers for names, numbers in state["means"]})
        if body.scaler is not None:
            for tensor, number in zip(body.scaler.state(), state["scaler"]):
                tensor.fill_(number)
        if carried is not None and saved_carried is not None:
            carried.load(saved_carried, body.device)

    def close(self) -> None:
        """Stop a compilation that still runs in another process."""
        self._controller.close()

    def report(self) -> StepReport:
        """Return which tier runs, why, what it cost and what it gains."""
        controller, skipped = self._controller, int(self.num_skipped)
        if self._count.steps:
            self._watch.look_for_untrained(self._count)
        self._watch.look_for_skipped(self._count, wait=True)
        return StepReport(
            tier=controller.tier,
            reason=controller.why,
            steps=self._count.steps,
            updates=self._count.updates,
            captures=controller.captures,
            compiles=controller.num_compiles,
            memory=memory_use(self._body.device),
            eager_step_s=controller.step_s.get("eager"),
            step_s=controller.step_s.get(controller.tier),
            promotion_cost_s=controller.cost_s or None,
            first_step_s=self._first_step_s,
            skipped=skipped,
            pending=self._window.position,
            dropped=self._usual.num_dropped,
            schedule=schedule_note(self._bridge) if self._count.updates else "",
            events=tuple(self._journal.events),
        )

    def _explained(self, error: BaseException, batch: tuple[Any, ...], stage: Stage) -> Exception | None:
        """Return an error that says more than torch's; None if there is nothing to add."""
        if stage is Stage.UPDATING:
            return explained_update(error, self._body.model, self._body.optimizer)
        if not isinstance(error, Exception) or stage not in (Stage.FORWARD, Stage.BACKWARD):
            return None
        extra = ("mask",) if self._settings.tail == "pad" else ()
        return explained(error, self._body.step_fn, self._body.model, batch, extra)

    def _classify(self, batch: tuple[Any, ...], form: Signature, samples: int) -> bool:
        """Return whether a batch of a new form is a ragged last one; report once if its size is ambiguous."""
        usual, count = self._usual, self._sample_count
        was_explicit = count.is_explicit
        varies = count.compare(batch, samples)
        if count.is_explicit and not was_explicit:
            self._journal.add(self._count.steps, "samples", Cause.SAMPLE_COUNT, count.note)
        if varies and self._window.accumulate > 1:
            self._warn_of_samples()
        ragged = usual.is_ragged(samples, may_grow=self.is_between_updates)
        usual.signature = form if samples and samples == usual.samples else None
        return ragged

    def _warn_of_samples(self) -> None:
        """Warn once that batches are weighted by their time steps, where weights matter."""
        if self._sample_count.varies:
            self._journal.warn(self._count.steps, "samples", Cause.SAMPLE_COUNT, self._sample_count.varies)

    def _run_watched(self, micro: Micro) -> Outcome:
        """Run the first batch here; look for broadcasts, and for modules that read time first."""
        controller, count = self._controller, self._sample_count
        possible, count.possible_steps = count.possible_steps, None
        if controller.tier != "eager" or (count.is_explicit and possible is None):
            return controller.run(micro, self._count.steps)
        model = self._body.model
        with time_first_calls(model) as found, watch_broadcasts(model, micro.batch) as broadcasts:
            outcome = controller.run(micro, self._count.steps)
        for text in broadcasts:
            self._journal.warn(self._count.steps, "broadcast", Cause.PROBABLE_MISTAKE, text)
        if text := samples_as_time(micro.batch, found):
            self._journal.warn(self._count.steps, "batch_first", Cause.PROBABLE_MISTAKE, text)
        count.learn(micro.batch, found, possible)
        return outcome

    def _micro_batch(self, batch: tuple[Any, ...], form: Signature, samples: int, *, ragged: bool) -> Micro:
        window, mask = self._window, None
        share = window.share(samples) if window.accumulate > 1 else 1.0
        real = samples if window.accumulate == 1 else window.samples
        if self._settings.tail == "pad":
            batch, mask = padded(batch, samples, self._usual.samples)
            form, samples, ragged = signature((*batch, mask)), len(mask), False
        carried: Signature = ()
        if self._body.undo.carried is not None:
            carried = self._body.undo.carried.form()
            form = (*form, "carried", carried)
        if window.accumulate == 1:
            return Micro(batch, form, Phase.ONLY, samples, 1.0, 1.0, ragged, mask, real, carried)
        phase = Phase.FIRST if window.position == 0 else Phase.MIDDLE
        if window.position == window.accumulate - 1:
            phase = Phase.LAST
        correction = window.correction if phase is Phase.LAST else 1.0
        return Micro(batch, form, phase, samples, share, correction, ragged, mask, real, carried)

    def _count_micro_batch(self) -> None:
        """Count a micro-batch, and the update if its window is full."""
        window = self._window
        self._count.steps += 1
        if window.accumulate > 1:
            window.position += 1
            if not window.is_full:
                self._body.progress.stage = Stage.COUNTED
                return
        self._count_update()

    def _count_update(self) -> None:
        if self._window.position:
            self._window.close()
        self._count.updates += 1
        self._body.progress.stage = Stage.UPDATE_COUNTED

    def _after_error(self, samples: int, count: Callable[[], object]) -> None:
        """Leave out a micro-batch whose forward failed; drop a window whose gradients are half written.

        What was complete before an interrupt arrived is counted.
        """
        progress = self._body.progress
        is_last = self._window.position + 1 >= self._window.accumulate
        if progress.stage is Stage.UPDATED or (progress.stage is Stage.ACCUMULATED and not is_last):
            count()
        if progress.stage is Stage.UPDATE_COUNTED:
            self._move_schedule()
        elif progress.is_writing or progress.stage is Stage.ACCUMULATED:
            self.give_up_window()
        elif progress.stage is Stage.FORWARD and self._window.accumulate > 1:
            self._window.leave_out(samples)

    def _end_window(self) -> None:
        try:
            self._controller.end_window(self._count.steps)
        finally:
            # Also if a trial is interrupted: the update is done.
            with uninterrupted():
                self._move_schedule()

    def _move_schedule(self) -> None:
        """Move the schedule on after an update."""
        if self._bridge is not None:
            self._bridge.advance()
        self._body.progress.stage = Stage.SCHEDULED
