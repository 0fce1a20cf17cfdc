"""Replaying a micro-batch: recordings of what Python would do, and what they rest on."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from flodl.core.rng_state import RngState

from ..batch.signature import Signature, shared_indices
from ..batch.tree import tensors_of
from ..device.autograd_history import attribute_path, cut_history, has_live_history
from ..device.tensors import is_conv_weight
from ..errors import NotCapturable
from ..guards.cheap import FLAG, LEARNS, Footing
from ..guards.recompile import no_compiling
from ..optimizer.adam import FastAdam, fast_adam
from ..optimizer.prepare import are_in_sync, host_settings, share_a_tensor, sync_rates
from ..program.outcome import Outcome
from ..program.program import StepBody
from ..program.progress import Stage
from ..program.runner import EagerRunner, Micro, Phase
from ..program.update import parameters_of, same_objects
from ..state.snapshot import live_state
from .mailbox import ADDRESS
from .recording import Recording, fresh_casts, new_stream, record

Lane = Callable[[tuple[Any, ...]], Tensor | None]


class RecordedRunner:
    """Replay recordings, one per phase and shape, as long as nothing that they rest on has changed.

    "only" is a whole step. With accumulation, "first" writes fresh gradients, "middle" adds to
    them, "last" adds and updates. Where the optimizer cannot be recorded, its update runs outside.
    """

    def __init__(self, body: StepBody, *, update_inside: bool) -> None:
        self.body = body
        self.update_inside = update_inside
        # Whether random numbers were drawn on the host while recording; replays keep what was drawn.
        self.draws_on_host = False
        self._recordings: dict[tuple[Phase, float, Signature], Recording[Outcome]] = {}
        # What the recording that ran last writes its gradients to, and each one, where others read them.
        self._grads: list[Tensor | None] = []
        self._grads_of: dict[tuple[Phase, float, Signature], list[Tensor | None]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = new_stream(body.device)
        self._last: Recording[Outcome] | None = None
        # What each one writes to and reads; while it lives, its memory is not given away.
        self._held: dict[tuple[Phase, float, Signature], list[Tensor]] = {}
        # The tables that a recorded update reads.
        self._quick: dict[tuple[Phase, float, Signature], FastAdam | None] = {}
        # What is outside the optimizer and gets gradients too, each with the tensor that they are added to.
        self._foreign: dict[Tensor, Tensor] = {}
        self._footing = Footing(body)
        self._places = [p.data_ptr() for p in body.parameters]
        self._baked_in = host_settings(body.optimizer) if update_inside else []
        self._settings = _together(self._baked_in)
        # The body takes others where groups that shared a rate no longer do.
        self._rates = body.updater.rates
        self._optimizer_state = body.optimizer.state
        self._num_states = len(body.optimizer.state) if update_inside else 0
        self._groups = [*body.optimizer.param_groups]

    @property
    def captures(self) -> int:
        """How many recordings there are."""
        return len(self._recordings)

    def fits(self, micro: Micro) -> bool:
        """Say whether such a micro-batch was recorded, and needs no correction that it does not hold."""
        baked = self.update_inside and micro.closes and micro.correction != 1.0
        return not baked and (micro.phase, micro.share, micro.signature) in self._recordings

    def what_changed(self) -> str | None:
        """Name what no longer is as it was recorded; asked before every replay, so it is kept cheap."""
        sync_rates(self._rates)
        if not are_in_sync(self._rates):
            return "one of several groups that shared a learning rate was given another"
        if self.body.optimizer.state is not self._optimizer_state:
            return "the optimizer's state was loaded anew"
        if len(self._optimizer_state) < self._num_states:
            return "the optimizer's state was cleared"
        if len(self.body.optimizer.param_groups) != len(self._groups):
            return "the optimizer has a different number of groups"
        if not same_objects(self.body.optimizer.param_groups, self._groups):
            return "a group of the optimizer was replaced"
        if changed := self._footing.what_changed():
            return changed
        if [p.data_ptr() for p in parameters_of(self.body.optimizer)] != self._places:
            return "a parameter was moved or replaced"
        for group, key, value in self._baked_in:
            if group[key] is not value and group[key] != value:
                return f"the optimizer's {key} was changed"
        return None

    def lane(self, turns: int) -> Lane | None:
        """Give the short way for whole steps like the last one, good for so many; None where there is none.

        It looks at everything that `what_changed` looks at, but of the parameters' places only the first
        and the last, which finds a model that was moved, and the first of images, which may lie another way
        round now. Where anything differs it gives None and has done
        nothing. This is all that the host does in most steps: every name here is local on purpose.
        """
        recording, optimizer, rates = self._last, self.body.optimizer, self._rates
        if recording is None or self._foreign or self._footing.others or share_a_tensor(rates):
            return None
        fits, shared, width = recording.fits, recording.shared, len(recording.inputs)
        state, num_states = self._optimizer_state, self._num_states
        num_groups, settings = len(self._groups), self._settings
        footing, parameters = self._footing, self.body.parameters
        # Whether there is an autocast at all, `fits` sees.
        cast_to, kind = footing.casting[1], self.body.device.type
        learns, modules, training = footing.learns, footing.modules, footing.training
        # Mostly all learn and all train, which is seen more quickly than what each of them does.
        all_do = all(learns) and all(training)
        first, last = parameters[0].data_ptr, parameters[-1].data_ptr
        first_place, last_place = self._places[0], self._places[-1]
        images = [place for place, parameter in enumerate(parameters) if is_conv_weight(parameter)][:1]
        turned = [(parameters[place].data_ptr, self._places[place]) for place in images]
        mailbox = recording.mailbox
        if mailbox is not None:
            run, free, write, memory = recording.run, mailbox.free, mailbox.write, mailbox.memory

        def replay_same(batch: tuple[Any, ...]) -> Tensor | None:
            nonlocal turns
            turns -= 1
            if turns < 0 or len(batch) != width or not fits(*batch):
                return None
            if (
                optimizer.state is not state
                or len(state) < num_states
                or len(optimizer.param_groups) != num_groups
                or first() != first_place
                or last() != last_place
            ):
                return None
            for where, place in turned:
                if where() != place:
                    return None
            if all_do:
                for parameter in parameters:
                    if not parameter.requires_grad:
                        return None
                for module in modules:
                    if not module["training"]:
                        return None
            elif [*map(LEARNS, parameters)] != learns or [*map(FLAG, modules)] != training:
                return None
            for now, (group, take, kept, count) in zip(optimizer.param_groups, settings):
                if now is not group or take(group) != kept or len(group["params"]) != count:
                    return None
            if shared and shared_indices(batch) != shared:
                return None
            if cast_to is not None and torch.get_autocast_dtype(kind) is not cast_to:
                return None
            for group, lr in rates:
                if group["lr"] is not lr:
                    sync_rates(rates)
            if mailbox is None:
                return recording.replay(batch).loss.clone()
            # What the mailbox does in `post`, written out.
            try:
                if len(free) < 2:
                    mailbox.begin_lap()
                loss, start = free.pop()
                if width == 2:
                    # What most batches are, in half the time.
                    write(memory, start, batch[0].data_ptr(), batch[1].data_ptr())
                else:
                    write(memory, start, *map(ADDRESS, batch))
                run()
            except BaseException:
                free.clear()
                raise
            return loss

        return replay_same

    def learn(self, micro: Micro) -> None:
        """Record a phase for a shape; nothing is executed."""
        if self.fits(micro):
            return
        if any(leaf.requires_grad for leaf in tensors_of(micro.batch)):
            raise NotCapturable("the batch asks for gradients, and a recording works on a copy; detach it")
        quick = self._quick_update() if micro.closes and self.update_inside else None

        def region(*static: Any) -> Outcome:
            opens, mask = micro.opens, None
            if opens:
                self.body.start_window()
            if micro.mask is not None:
                *rows, mask = static
                static = tuple(rows)
            outcome = self.body.micro_batch(
                static, micro.share, samples=micro.samples, mask=mask, opens=opens
            )
            if micro.closes and self.update_inside:
                self.body.update(quick=quick)
            return outcome

        if not micro.opens:
            self.show_grads()
        self._meet_foreign(self.body.side_effects.foreign)
        used = (*live_state(self.body).values(), *self.body.model.parameters())
        # Other tensors over the same memory: `.data = …` gives one other memory and lets go of its own.
        held = [tensor.detach() for tensor in used]
        recording = self._record(region, micro)
        if quick is not None:
            quick.write_tables()
        key = micro.phase, micro.share, micro.signature
        self._quick[key] = quick
        self._recordings[key], self._held[key] = recording, held
        # The recording writes to these very tensors; while they live, their memory is not given away.
        self._grads = [p.grad for p in self.body.parameters]
        if micro.phase is not Phase.ONLY or not self.update_inside:
            self._grads_of[key] = self._grads

    def _quick_update(self) -> FastAdam | None:
        return fast_adam(self.body.optimizer, self.body.bad, self.body.updater.num_skipped)

    def _record(self, region: Callable[..., Outcome], micro: Micro) -> Recording[Outcome]:
        """Record a region, and leave no history to the steps that run as Python in between."""
        with fresh_casts():
            return self._record_freshly(region, micro)

    def _record_freshly(self, region: Callable[..., Outcome], micro: Micro) -> Recording[Outcome]:
        cut_history(self.body.model, self.body.side_effects.lasting)
        if has_live_history(self.body.parameters):
            gc.collect()  # what only holds itself
        if has_live_history(self.body.parameters):
            raise NotCapturable(self._what_has_live_history())
        before = RngState.capture(self.body.device)
        try:
            with (
                torch.cuda.device(self.body.device),
                no_compiling() if self.body.is_compiled else nullcontext(),
            ):
                return record(
                    region, micro.inputs, pool=self._pool, stream=self._stream, loss_of=self._loss_of(micro)
                )
        finally:
            cut_history(self.body.model, self.body.side_effects.lasting)
            self.draws_on_host |= not before.same_on_cpu(RngState.capture(self.body.device))

    def _what_has_live_history(self) -> str:
        if not self.body.side_effects.lasting:
            return (
                "a tensor of an earlier step is held with its history, outside the model: "
                "keep it with .detach()"
            )
        name = attribute_path(self.body.side_effects.lasting[0], self.body.model)
        kept = f"the attribute {name!r}" if name else "a tensor within an attribute of the model"
        return (
            f"{kept} keeps its history from step to step: compute it in forward(), or keep it with .detach()"
        )

    def _loss_of(self, micro: Micro) -> Callable[[Outcome], Tensor] | None:
        """Give how a whole step hands over its loss by address; None where it is not of that kind."""
        whole = micro.phase is Phase.ONLY and self.update_inside and self.body.loss_dtype is torch.float32
        return (lambda outcome: outcome.loss) if whole else None

    def forget(self, micro: Micro) -> None:
        """Drop what was recorded for such a micro-batch, if anything was."""
        self._drop((micro.phase, micro.share, micro.signature))

    def forget_shapes_of(self, other: RecordedRunner) -> None:
        """Drop what was recorded for shapes that another runner has, too."""
        for key in other._recordings:
            self._drop(key)

    def _drop(self, key: tuple[Phase, float, Signature]) -> None:
        dropped = self._recordings.pop(key, None)
        self._last = None if self._last is dropped else self._last
        self._grads_of.pop(key, None)
        self._held.pop(key, None)
        self._quick.pop(key, None)

    def run(self, micro: Micro) -> Outcome:
        """Replay one micro-batch, and update where its window ends."""
        outcome = self.run_without_update(micro)
        if micro.closes and not self.update_inside:
            self.show_grads()
            self.body.update(micro.correction)
        return outcome

    def run_without_update(self, micro: Micro) -> Outcome:
        """Replay one micro-batch; an update that is part of its recording runs with it."""
        key = micro.phase, micro.share, micro.signature
        recording = self._recordings[key]
        if self._foreign:
            self._meet_foreign(self._foreign)
        progress = self.body.progress
        progress.stage = Stage.BACKWARD
        outcome = recording.replay(tensors_of(micro.inputs))
        progress.stage = Stage.UPDATED if micro.closes and self.update_inside else Stage.ACCUMULATED
        self._grads = self._grads_of.get(key, self._grads)
        flat = len(micro.batch) == len(recording.inputs) and all(map(torch.is_tensor, micro.batch))
        self._last = recording if flat and micro.phase is Phase.ONLY and self.update_inside else None
        return outcome

    @torch.no_grad()
    def _meet_foreign(self, leaves: Iterable[Tensor]) -> None:
        """Let gradients outside the optimizer be those that recordings add to, whatever was done to them."""
        for leaf in list(leaves):
            if (own := self._foreign.get(leaf)) is None:
                own = self._foreign[leaf] = torch.zeros_like(leaf)
            if leaf.grad is None:
                own.zero_()
            elif leaf.grad is not own:
                own.copy_(leaf.grad)
            leaf.grad = own

    def show_grads(self) -> None:
        """Put the gradients that the recordings write to where everybody looks for them."""
        for parameter, grad in zip(self.body.parameters, self._grads):
            if parameter.grad is not grad:
                parameter.grad = grad


Runner = EagerRunner | RecordedRunner


# A group, what takes its settings out in one go, what they were, and how many parameters it has.
_Group = tuple[dict[str, Any], Any, Any, int]


def _together(settings: list[tuple[dict[str, Any], str, Any]]) -> list[_Group]:
    """Give the settings group by group."""
    known: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
    for group, key, value in settings:
        known.setdefault(id(group), (group, {}))[1][key] = value
    made = []
    for group, values in known.values():
        take = itemgetter(*values)
        made.append((group, take, take(values), len(group["params"])))
    return made
