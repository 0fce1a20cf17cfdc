"""The runner of a compiled step."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import FunctionType, MethodType

import torch

from flodl.core.rng_state import RngState

from ..batch.signature import Signature
from ..guards.cheap import Footing
from ..guards.recompile import GuardFailed, no_compiling
from ..program.program import Outcome, StepBody
from ..program.runner import EagerRunner, Micro, Phase
from ..settings import StepFunction
from ..state.reachable_state import ReachableState
from .memory_format import LAYOUT_OPTIONS, Layout


class CompiledRunner(EagerRunner):
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

    def _around(self) -> ReachableState:
        model = self.body.model
        return ReachableState(model, copied=(*model.parameters(), *model.buffers()))


def compile_program(
    body: StepBody, *, tune: str | None = None, layouts: Sequence[Layout | None] = (None,)
) -> dict[Layout | None, StepBody]:
    """Give the same body with forward and backward fused by torch's compiler, for each layout.

    State is shared, and so is the trace of the step.
    """
    from .passes.pipeline import inductor_options
    from .variants import Variants

    options = {layout: inductor_options(tune=tune) | LAYOUT_OPTIONS[layout] for layout in layouts}
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
