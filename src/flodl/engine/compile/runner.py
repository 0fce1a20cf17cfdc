"""The runner of a compiled step."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType, MethodType

import torch

from flodl.core.rng_state import RngState

from ..batch.signature import Signature
from ..guards.cheap import CheapGuard
from ..guards.recompile import GuardFailed, no_recompiling
from ..program.outcome import Outcome
from ..program.program import StepBody
from ..program.runner import EagerRunner, Micro, Phase
from ..settings import StepFunction
from ..state.reachable_state import ReachableState
from .memory_format import LAYOUT_OPTIONS, Layout


class CompiledRunner(EagerRunner):
    """Run compiled code from Python, as on a CPU; never recompile implicitly."""

    def __init__(self, body: StepBody) -> None:
        super().__init__(body)
        self._known: set[tuple[Phase, Signature]] = set()
        self._num_groups = len(body.optimizer.param_groups)
        self._guard = CheapGuard(body)

    def what_changed(self) -> str | None:
        """Name what has changed since the step was compiled, in clearer words than a guard's."""
        if len(self.body.optimizer.param_groups) != self._num_groups:
            return "the optimizer has a different number of groups"
        return self._guard.what_changed()

    def fits(self, micro: Micro) -> bool:
        """Return whether code for such a micro-batch was compiled."""
        return (micro.phase, micro.signature) in self._known

    def learn(self, micro: Micro) -> None:
        """Remember that the code for such a micro-batch is compiled, since the candidate was made with it."""
        self._known.add((micro.phase, micro.signature))

    def run_without_update(self, micro: Micro) -> Outcome:
        """Run one micro-batch; if torch would have to recompile, undo it and raise.

        Code with a graph break may have run its first part by then, and changed state.
        """
        if micro.opens:
            self.body.updater.refresh()
        rng_state = RngState.capture(self.body.device)
        saved = self._save_reachable() if self.body.has_graph_breaks else None
        try:
            with no_recompiling():
                return super().run_without_update(micro)
        except GuardFailed:
            rng_state.restore()
            if saved is not None:
                saved.restore()
            if micro.opens:
                self.body.undo.undo(opens=True)
            raise

    def _save_reachable(self) -> ReachableState:
        model = self.body.model
        return ReachableState(model, copied=(*model.parameters(), *model.buffers()))


def compile_program(
    body: StepBody, *, tune: str | None = None, layouts: Sequence[Layout | None] = (None,)
) -> dict[Layout | None, StepBody]:
    """Return the same program with forward and backward compiled, for each memory format.

    They share all state with the original, and the trace of the step with each other.
    """
    from .passes.pipeline import inductor_options
    from .variants import Variants

    options = {layout: inductor_options(tune=tune) | LAYOUT_OPTIONS[layout] for layout in layouts}
    step_fn = with_own_code(uncompiled(body.step_fn))
    if None in options:
        return {None: _compiled_program(body, torch.compile(step_fn, dynamic=False, options=options[None]))}
    # Also for a single layout, so that it finds in the cache what was compiled for two.
    variants = Variants(options)
    compiled = torch.compile(step_fn, dynamic=False, backend=variants)
    return {layout: _compiled_program(body, variants.select(layout, compiled)) for layout in layouts}


def uncompiled(step_fn: StepFunction) -> StepFunction:
    """Return the original function if the caller has already passed it through `torch.compile`.

    >>> def step_fn(model, x): ...
    >>> uncompiled(torch.compile(step_fn, backend="eager")) is uncompiled(step_fn) is step_fn
    True
    """
    if getattr(step_fn, "_torchdynamo_disable", False):
        return step_fn  # the user disabled compilation for it
    return getattr(step_fn, "_torchdynamo_orig_callable", step_fn)


def with_own_code(step_fn: StepFunction) -> StepFunction:
    """Return the same function with its own code object.

    Torch compiles a code object a few times and then silently runs it eagerly, so that a ninth step with the
    same function would not be compiled. All callables that are not functions share a single code object.
    """
    if isinstance(step_fn, MethodType):
        return MethodType(with_own_code(step_fn.__func__), step_fn.__self__)
    if not isinstance(step_fn, FunctionType):
        return with_own_code(lambda *arguments: step_fn(*arguments))
    code, closure = step_fn.__code__.replace(), step_fn.__closure__
    copied = FunctionType(code, step_fn.__globals__, step_fn.__name__, step_fn.__defaults__, closure)
    copied.__kwdefaults__ = step_fn.__kwdefaults__
    copied.__dict__.update(step_fn.__dict__)
    return copied


def _compiled_program(body: StepBody, step_fn: StepFunction) -> StepBody:
    if body.device.type != "cuda":
        # Called from Python, a guard of compiled sums could fail after the backward.
        return body.compiled(step_fn)
    # Fewer kernels to record.
    account = torch.compile(with_own_code(body.means.account), dynamic=False)
    return body.compiled(step_fn, account)
