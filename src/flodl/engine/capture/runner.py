"""The runner of a captured step: replays recordings, one per phase, weight and signature."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flodl.core.rng_state import RngState

from ..batch.signature import Signature
from ..batch.tree import tensors_of
from ..device.autograd_history import attribute_path, cut_history, has_live_history
from ..device.timing import now_s
from ..errors import NotCapturable
from ..guards.recompile import GuardFailed, refusing_to_recompile
from ..optimizer.adam import FastAdam, fast_adam
from ..program.outcome import Outcome
from ..program.program import StepBody
from ..program.progress import Stage
from ..program.runner import EagerRunner, Micro, Phase
from ..state.snapshot import live_state
from .dependencies import Dependencies
from .lane import Lane, fast_lane
from .recording import Recording, fresh_casts, new_stream, record
from .static_state import StaticState
from .stored_values import StoredValues
from .update_program import RecordedUpdate, UpdateProgram

Key = tuple[Phase, float, Signature]


@dataclass
class Recorded:
    """A recording, and what must stay alive with it."""

    recording: Recording[Outcome]
    # The values that modules stored meanwhile, such as tags.
    stored: StoredValues
    # The values that it carries from call to call, if there are any.
    state: StaticState | None
    # What it reads and writes; while these live, their memory is not reused.
    held: list[Tensor]
    # The tables that a recorded update reads.
    adam: FastAdam | None
    # The gradients it writes, if others read them.
    grads: list[Tensor | None] | None
    # Parameters of the model outside the optimizer, with the gradients it writes.
    others: list[tuple[Tensor, Tensor]]
    # The update from these gradients, if it is recorded apart.
    update: RecordedUpdate | None = None


class RecordedRunner:
    """Replays recordings, one per phase and signature, as long as nothing that they depend on has changed.

    `Phase.ONLY` is a whole step. With accumulation, FIRST writes new gradients, MIDDLE adds to them, LAST
    adds and updates. If the optimizer cannot be recorded, its update runs outside. If gradients are averaged
    over ranks, the update is recorded apart from the rest.
    """

    def __init__(self, body: StepBody, *, update_inside: bool, update_apart: bool = False) -> None:
        self.body = body
        self.update_inside = update_inside
        # Whether random numbers were drawn on the CPU while recording; replays repeat them.
        self.draws_on_host = False
        self.recorded: dict[Key, Recorded] = {}
        # The gradients that the last recording writes.
        self._grads: list[Tensor | None] = []
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = new_stream(body.device)
        self.last: Recorded | None = None
        # The static tensors for carried values, by their form.
        self._states: dict[Signature, StaticState] = {}
        # Tensors outside the optimizer that receive gradients, each with the tensor they are added to.
        self._foreign: dict[Tensor, Tensor] = {}
        # The gradients of parameters outside the optimizer that the last recording writes.
        self._others: list[tuple[Tensor, Tensor]] = []
        self._dependencies = Dependencies(body, update_inside=update_inside or update_apart)
        self.update_program: UpdateProgram | None = None
        if update_apart:
            self.update_program = UpdateProgram(body, self._record_update, self.fast_update)

    @property
    def records_update(self) -> bool:
        """Whether updates are replayed, together with the rest or apart from it."""
        return self.update_inside or self.update_program is not None

    @property
    def captures(self) -> int:
        """How many recordings there are."""
        return len(self.recorded)

    def fits(self, micro: Micro) -> bool:
        """Return whether such a micro-batch was recorded, and needs no correction of its gradients."""
        if self.update_inside and micro.closes and micro.correction != 1.0:
            return False
        return (micro.phase, micro.share, micro.signature) in self.recorded

    def what_changed(self) -> str | None:
        """Return what differs from the time of recording, or None."""
        return self._dependencies.what_changed()

    def lane(self, turns: int) -> Lane | None:
        """Return the fast path for this many whole steps like the last one; None if there is none."""
        if self.last is None or self._foreign or self.last.others:
            return None
        last = self.last
        lane = fast_lane(last.recording, last.stored, self._dependencies, turns, last.state)
        loose = [parameter for parameter in self.body.others if parameter.requires_grad]
        if lane is None or not loose:
            return lane
        # The user's own backward() may have left gradients there, which a step clears.
        return lambda batch: lane(batch) if all(one.grad is None for one in loose) else None

    def learn(self, micro: Micro) -> None:
        """Record a phase for a signature; nothing is executed."""
        if self.fits(micro):
            return
        if any(leaf.requires_grad for leaf in tensors_of(micro.batch)):
            raise NotCapturable("the batch requires gradients, and a recording works on a copy; detach it")
        adam = self.fast_update() if micro.closes and self.update_inside else None
        stored = StoredValues(self.body.side_effects.stores)
        state = self._static_state(micro)

        def region(*static: Any) -> Outcome:
            opens, mask = micro.opens, None
            if state is not None:
                state.begin()
            if opens:
                self.body.start_window()
            if state is not None and not self._is_whole(micro):
                state.keep_start(opens=opens)
            if micro.mask is not None:
                *rows, mask = static
                static = tuple(rows)
            outcome = self.body.micro_batch(
                static, micro.share, samples=micro.samples, mask=mask, opens=opens
            )
            if state is not None:
                state.check()
            if micro.closes and self.update_inside:
                self.body.update(quick=adam)
            if state is not None:
                state.feed_back()
            return outcome

        if not micro.opens:
            self.show_grads()
            for parameter, grad in self._others:
                parameter.grad = grad
        own = {*map(id, self.body.others)}
        self._adopt_foreign(leaf for leaf in self.body.side_effects.foreign if id(leaf) not in own)
        used = (*live_state(self.body).values(), *self.body.model.parameters())
        # Aliases of the memory: `.data = …` would give the tensors themselves other memory.
        held = [tensor.detach() for tensor in used]
        recording = self.record_region(stored.watching(region), micro)
        if adam is not None:
            adam.write_tables()
        self._grads = [p.grad for p in self.body.parameters]
        others_read = micro.phase is not Phase.ONLY or not self.update_inside
        grads = self._grads if others_read else None
        learning = [one for one in self.body.others if one.requires_grad]
        self._others = [(one, one.grad) for one in learning if one.grad is not None]
        self.recorded[micro.phase, micro.share, micro.signature] = Recorded(
            recording, stored, state, held, adam, grads, self._others
        )

    def _static_state(self, micro: Micro) -> StaticState | None:
        """Return the static tensors for what is carried now; None if nothing is."""
        undo = self.body.undo
        if undo.carried is None:
            return None
        if undo.carried.form() != micro.carried:
            raise NotCapturable("the values that it carries change their form within an accumulation window")
        if micro.carried not in self._states:
            self._states[micro.carried] = StaticState(undo.carried, undo, self.body.device)
        return self._states[micro.carried]

    def _is_whole(self, micro: Micro) -> bool:
        """Return whether a recording contains a whole step, from the first gradient to the update."""
        return micro.phase is Phase.ONLY and self.update_inside

    def fast_update(self) -> FastAdam | None:
        """Return the faster form of the update for a new recording; None if it is not supported."""
        body = self.body
        # The norm of the gradients checks every element, too.
        checks = body.settings.guard == "gradients" and body.settings.clip_norm is None
        return fast_adam(body.optimizer, body.bad, body.updater.num_skipped, checks_gradients=checks)

    def record_region(self, region: Callable[..., Outcome], micro: Micro) -> Recording[Outcome]:
        """Record a region, and leave no autograd history to the steps that run in Python in between."""
        body = self.body
        lasting = body.side_effects.lasting
        with fresh_casts():
            cut_history(body.model, lasting)
            if has_live_history(body.parameters):
                gc.collect()  # history in reference cycles
            if has_live_history(body.parameters):
                raise NotCapturable(self._what_has_live_history())
            before = RngState.capture(body.device)
            try:
                with torch.cuda.device(body.device):
                    return record(
                        refusing_to_recompile(region) if body.is_compiled else region,
                        micro.inputs,
                        pool=self._pool,
                        stream=self._stream,
                        loss_of=self._loss_of(micro),
                    )
            except NotCapturable as error:
                if isinstance(error.__cause__, GuardFailed):
                    raise error.__cause__ from error
                raise
            finally:
                cut_history(body.model, lasting)
                self.draws_on_host |= not before.same_on_cpu(RngState.capture(body.device))

    def _what_has_live_history(self) -> str:
        lasting = self.body.side_effects.lasting
        if not lasting:
            return (
                "a tensor of an earlier step is kept with its autograd history, outside the model: "
                "keep it with .detach()"
            )
        name = attribute_path(lasting[0], self.body.model)
        kept = f"the attribute {name!r}" if name else "a tensor within an attribute of the model"
        return (
            f"{kept} keeps its autograd history from step to step: compute it in forward(), or keep it with "
            ".detach()"
        )

    def _loss_of(self, micro: Micro) -> Callable[[Outcome], Tensor] | None:
        """Return how to get the loss of a whole step in float32, which is handed over by address."""
        by_address = self._is_whole(micro) and self.body.loss_dtype is torch.float32
        return (lambda outcome: outcome.loss) if by_address else None

    def forget(self, micro: Micro) -> None:
        """Drop the recording of such a micro-batch, if there is one."""
        self._drop((micro.phase, micro.share, micro.signature))

    def forget_all(self) -> None:
        """Drop all recordings and return their memory; `learn` makes them again.

        The gradients that they wrote are dropped from the parameters, too.
        """
        now_s(self.body.device)  # replays that still run read what the recordings hold
        for parameter, grad in zip(self.body.parameters, self._grads):
            if parameter.grad is grad:
                parameter.grad = None
        self.recorded.clear()
        self.last, self._grads, self._others = None, [], []
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()

    def forget_shapes_of(self, other: RecordedRunner) -> None:
        """Drop the recordings for signatures that another runner has too."""
        for key in other.recorded:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        dropped = self.recorded.pop(key, None)
        if dropped is not None and self.last is dropped:
            self.last = None

    def run(self, micro: Micro) -> Outcome:
        """Replay one micro-batch, and update if its window ends."""
        outcome = self.run_without_update(micro)
        if micro.closes and not self.update_inside:
            self.show_grads()
            self._update_outside(micro)
        return outcome

    def _update_outside(self, micro: Micro) -> None:
        """Update from the gradients that the last replay has written."""
        if self.update_program is None:
            self.body.update(micro.correction, samples=micro.window_samples)
            return
        self.body.reduce(micro.correction, micro.window_samples)
        recorded = self.recorded[micro.phase, micro.share, micro.signature]
        recorded.update = self.update_program.run(self._grads, recorded.update)

    def _record_update(self, region: Callable[[], None]) -> Callable[[], object]:
        with torch.cuda.device(self.body.device):
            recording = record(region, (), pool=self._pool, stream=self._stream)
        return lambda: recording.replay(())

    def run_without_update(self, micro: Micro) -> Outcome:
        """Replay one micro-batch; an update that is part of its recording runs with it."""
        recorded = self.recorded[micro.phase, micro.share, micro.signature]
        recording = recorded.recording
        if self._foreign:
            self._adopt_foreign(self._foreign)
        if self.body.others:
            self._start_others(recorded, opens=micro.opens)
        if recorded.state is not None:
            recorded.state.load()
        progress = self.body.progress
        progress.stage = Stage.BACKWARD
        outcome = recording.replay(tensors_of(micro.inputs))
        progress.stage = Stage.UPDATED if micro.closes and self.update_inside else Stage.ACCUMULATED
        recorded.stored.show()
        if recorded.state is not None:
            recorded.state.show(starts=micro.opens and not self._is_whole(micro))
        for parameter, grad in recorded.others:
            parameter.grad = grad
        if recorded.grads is not None:
            self._grads = recorded.grads
        is_flat = len(micro.batch) == len(recording.inputs) and all(map(torch.is_tensor, micro.batch))
        self.last = recorded if is_flat and self._is_whole(micro) else None
        return outcome

    @torch.no_grad()
    def _adopt_foreign(self, leaves: Iterable[Tensor]) -> None:
        """Replace the gradients of tensors outside the optimizer by those that recordings add to."""
        for leaf in list(leaves):
            if (own := self._foreign.get(leaf)) is None:
                own = self._foreign[leaf] = torch.zeros_like(leaf)
            _continue_in(own, leaf)

    @torch.no_grad()
    def _start_others(self, recorded: Recorded, *, opens: bool) -> None:
        """Clear the gradients of parameters outside the optimizer, or let the recording add to them."""
        self._others = recorded.others
        if opens:
            self.body.clear_others()
            return
        for parameter, own in recorded.others:
            _continue_in(own, parameter)

    def show_grads(self) -> None:
        """Put the gradients that the recordings write into `.grad`."""
        for parameter, grad in zip(self.body.parameters, self._grads):
            if parameter.grad is not grad:
                parameter.grad = grad


def _continue_in(own: Tensor, leaf: Tensor) -> None:
    """Make a tensor that a recording adds to the gradient of a leaf, with the values of its gradient."""
    if leaf.grad is None:
        own.zero_()
    elif leaf.grad is not own:
        own.copy_(leaf.grad)
    leaf.grad = own


Runner = EagerRunner | RecordedRunner
