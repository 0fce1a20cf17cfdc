"""Who runs a micro-batch: Python, or a recording of what Python would do."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Literal

import torch
from torch import Tensor

from .batch import Signature, num_samples, shared_places, tensors_of
from .body import Outcome, StepBody
from .capture import Recording, new_stream, record
from .optimizer import host_settings, take_rates
from .snapshot import Randomness

_LEARNS, _TRAINING = attrgetter("requires_grad"), attrgetter("training")

Phase = Literal["only", "first", "middle", "last"]


@dataclass(frozen=True)
class Micro:
    """One micro-batch: where it stands in its window, its part of it, and what makes up for ragged ones."""

    batch: tuple[Any, ...]
    shape: Signature
    phase: Phase
    share: float
    correction: float = 1.0
    ragged: bool = False

    @property
    def opens(self) -> bool:
        """Whether gradients start anew here."""
        return self.phase in ("only", "first")

    @property
    def closes(self) -> bool:
        """Whether the optimizer updates after it."""
        return self.phase in ("only", "last")


def phase_of(position: int, accumulate: int) -> Phase:
    """Give the phase of a micro-batch by its position in the window."""
    if accumulate == 1:
        return "only"
    if position == 0:
        return "first"
    return "last" if position == accumulate - 1 else "middle"


def is_tail(batch: tuple[Any, ...], usual_samples: int) -> bool:
    """Say whether a batch is a ragged last one."""
    return 0 < num_samples(batch) < usual_samples


class EagerRunner:
    """Run the body as it is written."""

    def __init__(self, body: StepBody) -> None:
        self.body = body
        self.captures = 0

    def fits(self, micro: Micro) -> bool:
        """Everything fits."""
        return True

    def learn(self, micro: Micro) -> None:
        """There is nothing to prepare."""

    def what_changed(self) -> str | None:
        """Python notices every change by itself."""
        return None

    def show_grads(self) -> None:
        """The gradients are where they always are."""

    def run(self, micro: Micro) -> Outcome:
        """Run one micro-batch, and the update where its window ends."""
        outcome = self.run_without_update(micro)
        if micro.closes:
            self.body.update(micro.correction)
        return outcome

    def run_without_update(self, micro: Micro) -> Outcome:
        """Run forward and backward of one micro-batch."""
        if micro.opens:
            self.body.clear()
        return self.body.micro(micro.batch, micro.share, opens=micro.opens)


class RecordedRunner:
    """Replay recordings, one per phase and shape, as long as nothing that they rest on has changed.

    "only" is a whole step. With accumulation, "first" writes fresh gradients, "middle" adds to
    them, "last" adds and updates. Where the optimizer cannot be recorded, its update runs outside.
    """

    def __init__(self, body: StepBody, *, update_inside: bool) -> None:
        self.body = body
        self.update_inside = update_inside
        self._recordings: dict[tuple[Phase, float, Signature], Recording[Outcome]] = {}
        # What the recording that ran last writes its gradients to, and each one, where others read them.
        self._grads: list[Tensor | None] = []
        self._grads_of: dict[tuple[Phase, float, Signature], list[Tensor | None]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = new_stream(body.device)
        self._last: Recording[Outcome] | None = None
        self._learns = [p.requires_grad for p in body.parameters]
        self._places = [p.data_ptr() for p in body.parameters]
        self._modules = list(body.model.modules())
        self._training = [module.training for module in self._modules]
        self._baked_in = host_settings(body.optimizer) if update_inside else []
        self._settings = _together(self._baked_in)
        self._optimizer_state = body.optimizer.state
        self._num_groups = len(body.optimizer.param_groups)

    @property
    def captures(self) -> int:
        """How many recordings there are."""
        return len(self._recordings)

    def fits(self, micro: Micro) -> bool:
        """Say whether such a micro-batch was recorded, and needs no correction that it does not hold."""
        baked = self.update_inside and micro.closes and micro.correction != 1.0
        return not baked and (micro.phase, micro.share, micro.shape) in self._recordings

    def what_changed(self) -> str | None:
        """Name what no longer is as it was recorded; asked before every replay, so it is kept cheap."""
        take_rates(self.body.rates)
        if self.body.optimizer.state is not self._optimizer_state:
            return "the optimizer's state was loaded anew"
        if len(self.body.optimizer.param_groups) != self._num_groups:
            return "the optimizer has another number of groups"
        parameters = self.body.parameters
        if [p.requires_grad for p in parameters] != self._learns:
            return "a parameter was frozen or thawed"
        if [p.data_ptr() for p in parameters] != self._places:
            return "a parameter was moved or replaced"
        if [module.training for module in self._modules] != self._training:
            return "a module was switched between training and evaluation"
        for group, key, value in self._baked_in:
            if group[key] is not value and group[key] != value:
                return f"the optimizer's {key} was changed"
        return None

    def replay_same(self, batch: tuple[Any, ...]) -> Tensor | None:
        """Replay the recording that ran last and give its loss, if this batch fits and nothing has changed.

        This is all that the host does in most steps, so every microsecond counts: of the parameters'
        places only the first and the last are compared here, which finds a model that was moved.
        """
        recording = self._last
        if recording is None or len(batch) != len(recording.forms) or not self._is_as_recorded():
            return None
        for given, (shape, dtype, stride, device) in zip(batch, recording.forms):
            if (
                type(given) is not Tensor
                or given.shape != shape
                or given.dtype is not dtype
                or given.stride() != stride
                or given.device != device
            ):
                return None
        if recording.shared and shared_places(batch) != recording.shared:
            return None
        if recording.mailbox is None:
            return recording.replay(batch).loss.clone()
        return recording.replay_for_loss(recording.mailbox, batch)

    def _is_as_recorded(self) -> bool:
        body = self.body
        take_rates(body.rates)
        parameters, places = body.parameters, self._places
        return (
            body.optimizer.state is self._optimizer_state
            and len(body.optimizer.param_groups) == self._num_groups
            and list(map(_LEARNS, parameters)) == self._learns
            and parameters[0].data_ptr() == places[0]
            and parameters[-1].data_ptr() == places[-1]
            and list(map(_TRAINING, self._modules)) == self._training
            and all(take(group) == kept for group, take, kept in self._settings)
        )

    def learn(self, micro: Micro) -> None:
        """Record a phase for a shape; nothing is executed."""
        if self.fits(micro):
            return

        def region(*static: Any) -> Outcome:
            if micro.opens:
                self.body.clear()
            outcome = self.body.micro(static, micro.share, opens=micro.opens)
            if micro.closes and self.update_inside:
                self.body.update()
            return outcome

        if not micro.opens:
            self.show_grads()
        with no_compiling() if self.body.fused else nullcontext():
            recording = record(
                region, micro.batch, pool=self._pool, stream=self._stream, loss_of=self._loss_of(micro)
            )
        key = micro.phase, micro.share, micro.shape
        self._recordings[key] = recording
        # The recording writes to these very tensors; while they live, their memory is not given away.
        self._grads = [p.grad for p in self.body.parameters]
        if micro.phase != "only" or not self.update_inside:
            self._grads_of[key] = self._grads

    def _loss_of(self, micro: Micro) -> Callable[[Outcome], Tensor] | None:
        """Give how a whole step hands over its loss by address; None where it is not of that kind."""
        whole = micro.phase == "only" and self.update_inside and self.body.loss_dtype is torch.float32
        return (lambda outcome: outcome.loss) if whole else None

    def forget(self, micro: Micro) -> None:
        """Drop what was recorded for such a micro-batch, if anything was."""
        self._recordings.pop((micro.phase, micro.share, micro.shape), None)
        self._grads_of.pop((micro.phase, micro.share, micro.shape), None)

    def run(self, micro: Micro) -> Outcome:
        """Replay one micro-batch, and update where its window ends."""
        key = micro.phase, micro.share, micro.shape
        recording = self._recordings[key]
        outcome = recording.replay(tensors_of(micro.batch))
        self._grads = self._grads_of.get(key, self._grads)
        if micro.closes and not self.update_inside:
            self.show_grads()
            self.body.update(micro.correction)
        flat = len(micro.batch) == len(recording.inputs)
        self._last = recording if flat and micro.phase == "only" and self.update_inside else None
        return outcome

    def show_grads(self) -> None:
        """Put the gradients that the recordings write to where everybody looks for them."""
        for parameter, grad in zip(self.body.parameters, self._grads):
            if parameter.grad is not grad:
                parameter.grad = grad


class GuardFailed(Exception):
    """Something that the compiled code rests on has changed; says what."""


class FusedRunner(EagerRunner):
    """Run compiled code from Python, as on a CPU; never compile again by surprise."""

    def __init__(self, body: StepBody) -> None:
        super().__init__(body)
        self._known: set[tuple[Phase, Signature]] = set()

    def fits(self, micro: Micro) -> bool:
        """Say whether code for such a micro-batch was compiled."""
        return (micro.phase, micro.shape) in self._known

    def learn(self, micro: Micro) -> None:
        """The code was compiled when the candidate was made; remember for what."""
        self._known.add((micro.phase, micro.shape))

    def run(self, micro: Micro) -> Outcome:
        """Run one micro-batch; where torch would have to compile again, it is as if nothing had run.

        Code that the compiler had to cut in two may have run its first part by then.
        """
        randomness = Randomness.now(self.body.device)
        try:
            with no_compiling():
                outcome = self.run_without_update(micro)
        except GuardFailed:
            randomness.restore(self.body.device)
            if micro.opens:
                self.body.put_statistics_back()
            raise
        if micro.closes:
            self.body.update(micro.correction)
        return outcome


@contextmanager
def no_compiling() -> Iterator[None]:
    """Refuse to compile again, and name the guard that asked for it."""
    with torch.compiler.set_stance("fail_on_recompile"):
        try:
            yield
        except RuntimeError as error:
            if "fail_on_recompile" not in str(error):
                raise
            raise GuardFailed(f"the compiled code no longer fits ({_guard_of(str(error))})") from error


def _guard_of(told: str) -> str:
    """Find the guard that failed, and the line it came from, in what torch says about it.

    >>> _guard_of("Detected recompile\\n  - 0/1: G['scale'] == 1.0     # x * scale # a.py:5\\n  - User")
    "G['scale'] == 1.0 # x * scale # a.py:5"
    """
    lines = [" ".join(line.split()) for line in told.splitlines() if line.strip()]
    named = [found[1] for line in lines if (found := re.match(r"- \d+/\d+: (.+)", line))]
    return named[0] if named else lines[-1]


Runner = EagerRunner | RecordedRunner


def fused(body: StepBody, *, tune: str | None = None) -> StepBody:
    """Give the same body with forward and backward fused by torch's compiler; state is shared."""
    from .fusion import fusion_options

    twin = copy.copy(body)
    twin.fused = True
    twin.step_fn = torch.compile(body.step_fn, dynamic=False, options=fusion_options(tune=tune))
    twin.tally = copy.copy(body.tally)
    twin.tally.account = torch.compile(body.tally.account, dynamic=False)
    return twin


def _together(settings: list[tuple[dict[str, Any], str, Any]]) -> list[tuple[dict[str, Any], Any, Any]]:
    """Give, for each group, what takes its settings out in one go, and what they were."""
    keys: dict[int, list[str]] = {}
    for group, key, _ in settings:
        keys.setdefault(id(group), []).append(key)
    found = {id(group): group for group, _, _ in settings}
    takers = [(found[place], itemgetter(*names)) for place, names in keys.items()]
    return [(group, take, take(group)) for group, take in takers]
