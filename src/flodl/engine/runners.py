"""Running a micro-batch from Python: as it is written, or as torch's compiler has fused it."""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, Literal

import torch

from flodl.core.rng_state import RngState

from .batch import Signature
from .body import Outcome, StepBody, StepFunction
from .footing import Footing
from .layout import OPTIONS, Layout
from .surroundings import Surroundings

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


class GuardFailed(Exception):
    """Something that the compiled code rests on has changed; says what."""


class FusedRunner(EagerRunner):
    """Run compiled code from Python, as on a CPU; never compile again by surprise."""

    def __init__(self, body: StepBody) -> None:
        super().__init__(body)
        self._known: set[tuple[Phase, Signature]] = set()
        self._num_groups = len(body.optimizer.param_groups)
        self._footing = Footing(body)

    def what_changed(self) -> str | None:
        """Name what no longer is as it was compiled, in other words than a guard would."""
        if len(self.body.optimizer.param_groups) != self._num_groups:
            return "the optimizer has another number of groups"
        return self._footing.what_changed()

    def fits(self, micro: Micro) -> bool:
        """Say whether code for such a micro-batch was compiled."""
        return (micro.phase, micro.shape) in self._known

    def learn(self, micro: Micro) -> None:
        """The code was compiled when the candidate was made; remember for what."""
        self._known.add((micro.phase, micro.shape))

    def run_without_update(self, micro: Micro) -> Outcome:
        """Run one micro-batch; where torch would have to compile again, it is as if nothing had run.

        Code that the compiler had to cut in two may have run its first part by then, with what it keeps.
        """
        if micro.opens:
            self.body.meet_optimizer_again()
        rng_state = RngState.capture(self.body.device)
        around = self._around() if self.body.is_split else None
        try:
            with no_compiling():
                return super().run_without_update(micro)
        except GuardFailed:
            rng_state.restore()
            if around is not None:
                around.restore()
            if micro.opens:
                self.body.undo_forward(opens=True)
            raise

    def _around(self) -> Surroundings:
        model = self.body.model
        return Surroundings(model, copied=(*model.parameters(), *model.buffers()))


@contextmanager
def no_compiling() -> Iterator[None]:
    """Refuse to compile again, and name the guard that asked for it."""
    with _only_what_is_compiled:
        try:
            yield
        except RuntimeError as error:
            if "fail_on_recompile" not in str(error):
                raise
            raise GuardFailed(f"the compiled code no longer fits ({_guard_of(str(error))})") from error


class _OnlyWhatIsCompiled:
    """Torch's stance against compiling again, one for all threads: the last one out takes it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._stance: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                # Set where it is made.
                self._stance = torch.compiler.set_stance("fail_on_recompile")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._stance.__exit__(None, None, None)


_only_what_is_compiled = _OnlyWhatIsCompiled()


def _guard_of(told: str) -> str:
    """Find the guard that failed, and the line it came from, in what torch says about it.

    >>> _guard_of("Detected recompile\\n  - 0/1: G['scale'] == 1.0     # x * scale # a.py:5\\n  - User")
    "G['scale'] == 1.0 # x * scale # a.py:5"
    """
    lines = [" ".join(line.split()) for line in told.splitlines() if line.strip()]
    named = [found[1] for line in lines if (found := re.match(r"- \d+/\d+: (.+)", line))]
    return named[0] if named else lines[-1]


def fused(
    body: StepBody, *, tune: str | None = None, layouts: Sequence[Layout | None] = (None,)
) -> dict[Layout | None, StepBody]:
    """Give the same body with forward and backward fused by torch's compiler, for each layout.

    State is shared, and so is the trace of the step.
    """
    from .fusion import fusion_options
    from .variants import Variants

    options = {layout: fusion_options(tune=tune) | OPTIONS[layout] for layout in layouts}
    step_fn = _with_code_of_its_own(uncompiled(body.step_fn))
    if None in options:
        return {None: _twin(body, torch.compile(step_fn, dynamic=False, options=options[None]))}
    # For one layout, too: so it finds in the cache what was compiled for two.
    variants = Variants(options)
    compiled = torch.compile(step_fn, dynamic=False, backend=variants)
    return {layout: _twin(body, variants.using(layout, compiled)) for layout in layouts}


def uncompiled(step_fn: StepFunction) -> StepFunction:
    """Give the function itself where somebody has put it through torch's compiler already.

    >>> def step_fn(model, x): ...
    >>> uncompiled(torch.compile(step_fn, backend="eager")) is uncompiled(step_fn) is step_fn
    True
    """
    if getattr(step_fn, "_torchdynamo_disable", False):
        return step_fn  # somebody has asked that it is not compiled
    return getattr(step_fn, "_torchdynamo_orig_callable", step_fn)


def _with_code_of_its_own(step_fn: StepFunction) -> StepFunction:
    """Give the same function with another code object.

    Torch compiles a code object a few times and then runs it as it is, without a word; a ninth step with
    the same function would not be compiled. All that is called without being a function has one in common.
    """
    if isinstance(step_fn, MethodType):
        return MethodType(_with_code_of_its_own(step_fn.__func__), step_fn.__self__)
    if not isinstance(step_fn, FunctionType):
        return _with_code_of_its_own(lambda *given: step_fn(*given))
    code, closure = step_fn.__code__.replace(), step_fn.__closure__
    twin = FunctionType(code, step_fn.__globals__, step_fn.__name__, step_fn.__defaults__, closure)
    twin.__kwdefaults__ = step_fn.__kwdefaults__
    twin.__dict__.update(step_fn.__dict__)
    return twin


def _twin(body: StepBody, step_fn: StepFunction) -> StepBody:
    twin = copy.copy(body)
    twin.fused = True
    twin.step_fn = step_fn
    twin.tally = copy.copy(body.tally)
    if body.device.type == "cuda":
        # Fewer kernels to record. From Python, a guard that fails here would come after the backward.
        twin.tally.account = torch.compile(_with_code_of_its_own(body.tally.account), dynamic=False)
    return twin
