"""Loops: apply a body a fixed number of times, or until a condition is above zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flodl.core import LoopError, StateError, log
from flodl.core.formats import a_type

from ..plan.error_path import details_of_part, prepend_path
from ..plan.memory import tensors
from ..plan.shapes import differ
from ..plan.signature import Accepts, accepts, method
from ..plan.titles import title_of
from .control import Control, Target, batch_size, carried_tag, on_meta, one_or_per_sample, per_sample
from .traces import Emit, Traces

Asked = Literal["before", "after"]
_KEEPING = "the loop, for samples that have finished"


class Loop(Control):
    """Apply `body` to its own output, at most `turns` times.

    A condition is evaluated before each iteration (while) or after each but the last (until). A scalar
    stops the batch; one value per sample stops samples one by one. With `masked`, every iteration
    runs and finished samples keep their value: no host sync, so the loop can be captured.
    """

    kind = "loop"

    def __init__(
        self,
        body: Target,
        *,
        turns: int,
        condition: Target | None = None,
        asked: Asked = "before",
        masked: bool = False,
    ) -> None:
        super().__init__()
        self.body = body
        self.condition = condition
        self.turns = turns
        self.asked = asked
        self.masked = masked
        self.traces = Traces()
        of_body = accepts(body)
        self._emits = "emit" in of_body.names
        self._body_refs = of_body.without("emit")
        self._condition_refs = accepts(condition) if condition is not None else Accepts()
        self._carried = carried_tag(body)
        if self._carried is not None and masked and not getattr(condition, "weighs_turns", False):
            raise _continued_state(
                self._carried,
                "masked=True runs all iterations",
                "Use masked=False and one value for the batch",
            )

    def part_names(self) -> tuple[str, ...]:
        return ("body",) if self.condition is None else ("body", "condition")

    def accepted_refs(self) -> Accepts:
        return self._body_refs.joined(self._condition_refs)

    def describe(self) -> str:
        if self.condition is None:
            return f"for {self.turns}"
        word = "while" if self.asked == "before" else "until"
        return f"{word}, at most {self.turns}" + (", masked" if self.masked else "")

    def parts_read_again(self) -> dict[str, str]:
        if self.condition is None:
            return {}
        read = {"condition": "'body'"}
        keeps = self.masked or getattr(self.condition, "per_sample", False) is True
        if keeps and not getattr(self.condition, "weighs_turns", False):
            read["body"] = _KEEPING
        return read

    def forward(self, stream: Any, /, **refs: Any) -> Any:
        is_first_while = self._reads_while_condition() and not self.traces.has_run
        self.traces.begin()
        if reset := method(self.body, "reset"):
            reset()
        turn = self._bind(refs)
        if self.condition is None:
            return self._run_fixed(stream, turn)
        ask = self._bind_condition(refs)
        if getattr(self.condition, "weighs_turns", False):
            return self._run_weighted(stream, turn, ask)
        return self._run_until_halt(stream, turn, self._noting_an_early_stop(ask) if is_first_while else ask)

    def _reads_while_condition(self) -> bool:
        """Return whether the host reads a condition before the first iteration."""
        is_while = self.condition is not None and self.asked == "before" and not self.masked
        return is_while and not torch.compiler.is_compiling()

    def _noting_an_early_stop(self, ask: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the condition for the first call: it logs if `while_cond` is true before any iteration.

        That is what a condition for continuing does.
        """
        num_asked = 0

        def ask_and_note(state: Any) -> Any:
            nonlocal num_asked
            num_asked += 1
            answer = ask(state)
            if num_asked == 1 and _is_plainly_true(answer):
                log.warn(
                    "note: the condition %s of while_cond is true before the first iteration, so the loop "
                    "stops there. True means stop; if this is a condition for continuing, negate it.",
                    title_of(self.condition) if self.condition else "",
                )
            return answer

        return ask_and_note

    def _bind(self, refs: dict[str, Any]) -> Callable[[Any, int], Any]:
        """Return the function that runs one iteration."""
        body = self.body
        own_refs = {name: value for name, value in refs.items() if self._body_refs.takes(name)}
        published = method(body, "published_values") if getattr(body, "tags", ()) else None
        traces = self.traces

        def turn(state: Any, number: int) -> Any:
            before = self.versions(own_refs) if number + 1 < self.turns else None
            try:
                if self._emits:
                    state = body(state, emit=Emit(traces), **own_refs)
                else:
                    state = body(state, **own_refs)
            except Exception as error:
                details = [details_of_part(error, body, state), f"iteration {number + 1} of {self.turns}"]
                prepend_path(error, "body", ", ".join(filter(None, details)))
                raise
            if before is not None:
                before.check("body", "the next iteration")
            if published is not None:
                for name, value in published():
                    traces.add(name, value)
            return state

        return turn

    def _run_fixed(self, state: Any, turn: Callable[[Any, int], Any]) -> Any:
        for number in range(self.turns):
            state = turn(state, number)
        return state

    def _bind_condition(self, refs: dict[str, Any]) -> Callable[[Any], Any]:
        condition = self.condition
        assert condition is not None
        own_refs = {name: value for name, value in refs.items() if self._condition_refs.takes(name)}

        def ask(state: Any) -> Any:
            before = self.versions((state, own_refs))
            try:
                answer = condition(state, **own_refs)
            except Exception as error:
                prepend_path(error, "condition", details_of_part(error, condition, state))
                raise
            if before is not None:
                before.check("condition", "the body")
            return answer

        return ask

    def _run_until_halt(self, state: Any, turn: Callable[[Any, int], Any], ask: Callable[[Any], Any]) -> Any:
        """Stop when the condition is above zero."""
        is_meta = on_meta(state)
        active: Tensor | None = None
        for number in range(self.turns):
            if self.asked == "before" or number > 0:
                answer = ask(state)
                running = _still_running(answer, state)
                if not self.masked and not is_meta and self._is_nan_checked_at(number):
                    _check_not_nan(answer, active, number)
                if not isinstance(running, Tensor):
                    if not running:
                        break
                elif running.dim() == 0 and not self.masked:
                    if not is_meta and not bool(running):
                        break
                else:
                    if self._carried is not None:
                        raise _continued_state(
                            self._carried,
                            "samples stop one by one, and the body runs on all of them",
                            "Return one value for the batch",
                        )
                    active = running if active is None else active & running
                    if not self.masked and not is_meta and not bool(active.any()):
                        break
            before = self.versions(state) if active is not None else None
            after = turn(state, number)
            if before is not None:
                before.check("body", _KEEPING)
            state = after if active is None else _keep_finished(active, after, state)
        return state

    def _is_nan_checked_at(self, number: int) -> bool:
        """Return whether to check the condition for NaN, which is never above zero.

        A check waits for the device, so it is left to the last iteration and to one in 64.
        """
        return (number + 1 == self.turns or number % 64 == 63) and not torch.compiler.is_compiling()

    def _run_weighted(self, state: Any, turn: Callable[[Any, int], Any], ask: Callable[[Any], Any]) -> Any:
        """Return the expected state: each iteration is weighted by the probability of stopping after it."""
        total: Any = None
        remaining: Tensor | None = None
        for number in range(self.turns):
            if self.asked == "before" or number > 0:
                stop = _per_sample_logit(ask(state), state).sigmoid()
                weight = stop if remaining is None else remaining * stop
                remaining = 1 - stop if remaining is None else remaining * (1 - stop)
                total = _add_weighted(total, weight, state)
                self.traces.add("halt", weight)
            state = turn(state, number)
        if remaining is None:  # a single iteration, without a condition: it has all the weight
            self.traces.add("halt", tensors(state)[0].new_ones(batch_size(state) or ()))
            return state
        self.traces.add("halt", remaining)
        return _add_weighted(total, remaining, state)


def _continued_state(tag: str, why: str, fix: str) -> StateError:
    return StateError(
        f"the body carries {tag!r}, and {why}, so the carried value would change after the stop. {fix}, or "
        "make the value a part of the loop's state, for example of a tuple.",
        path="body",
    )


def _still_running(value: Any, state: Any) -> Tensor | bool:
    """Return what continues: a plain bool, a scalar tensor for the batch, or one bool per sample."""
    if not isinstance(value, Tensor):
        if isinstance(value, bool | int | float):
            return not value > 0
        raise LoopError(
            f"the condition returned {a_type(value)}. Return a number, or a tensor with one value "
            "or one value per sample; above zero means stop.",
            path="condition",
        )
    if value.dtype != torch.bool:
        value = value > 0
    return ~_scalar_or_per_sample(value, state)


def _is_plainly_true(answer: Any) -> bool:
    """Return whether a condition returned True, or a boolean tensor of nothing else."""
    if isinstance(answer, Tensor):
        is_known = answer.dtype == torch.bool and not answer.is_meta and answer.numel() > 0
        return is_known and bool(answer.all())
    return answer is True


def _check_not_nan(answer: Any, active: Tensor | None, number: int) -> None:
    """Raise if the condition is NaN for the batch, or for a sample that has not finished."""
    if not isinstance(answer, Tensor):
        is_nan = answer != answer
    else:
        nans = answer.isnan()
        if active is not None and nans.numel() == active.numel():
            nans = nans.reshape(active.shape) & active
        is_nan = bool(nans.any())
    if is_nan:
        raise LoopError(
            f"the condition returned NaN before iteration {number + 1}. NaN is never above zero, so the loop "
            "would not stop. Find out where the state becomes NaN: torch.autograd.set_detect_anomaly(True), "
            "or return torch.nan_to_num(value, nan=1.0) to stop.",
            path="condition",
        )


def _per_sample_logit(value: Any, state: Any) -> Tensor:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        what = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
        raise LoopError(
            f"the learned halt returned {what}. Return floating-point logits, one per sample.",
            path="condition",
        )
    return _scalar_or_per_sample(value, state)


def _scalar_or_per_sample(value: Tensor, state: Any) -> Tensor:
    shaped = one_or_per_sample(value, state)
    if shaped is not None:
        return shaped
    raise LoopError(
        f"the condition returned shape {tuple(value.shape)} for a batch of {batch_size(state)}. "
        "Return one value, or one value per sample.",
        path="condition",
    )


def _keep_finished(active: Tensor, after: Any, before: Any) -> Any:
    """Return the new state of active samples and the old state of finished ones."""
    new, structure = pytree.tree_flatten(after)
    old, old_structure = pytree.tree_flatten(before)
    shapes = [tuple(leaf.shape) for leaf in tensors(after)], [tuple(leaf.shape) for leaf in tensors(before)]
    if structure != old_structure or shapes[0] != shapes[1]:
        raise LoopError(
            f"the body changes the state from shape {_shown(shapes[1])} to {_shown(shapes[0])}. A loop that "
            "stops samples one by one needs a body that preserves the shape.",
            path="body",
        )
    _check_rows(active, tensors(after))
    kept = [
        torch.where(per_sample(active, leaf), leaf, kept) if isinstance(leaf, Tensor) else leaf
        for leaf, kept in zip(new, old)
    ]
    return pytree.tree_unflatten(kept, structure)


def _check_rows(values: Tensor, leaves: list[Tensor]) -> None:
    """Raise if a state does not have one row for each value of a condition: torch would broadcast it."""
    for leaf in leaves if values.dim() else ():
        if leaf.dim() == 0 or differ(leaf.shape[:1], values.shape):
            raise LoopError(
                f"the condition returned one value for each of {len(values)} samples, but a state has shape "
                f"{tuple(leaf.shape)}. Every tensor of the state needs one row per sample, first.",
                path="body",
            )


def _shown(shapes: list[tuple[int, ...]]) -> str:
    return ", ".join(map(str, shapes))


def _add_weighted(total: Any, weight: Tensor, state: Any) -> Any:
    def term(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            raise LoopError(
                f"a learned halt weights the states of all iterations, but one state is {leaf.dtype}. "
                "Use a floating-point state, or use ThresholdHalt.",
                path="body",
            )
        return per_sample(weight, leaf) * leaf

    _check_rows(weight, tensors(state))
    weighted = pytree.tree_map_only(Tensor, term, state)
    if total is None:
        return weighted
    shapes = [[tuple(leaf.shape) for leaf in tensors(each)] for each in (total, weighted)]
    if len(shapes[0]) != len(shapes[1]) or any(map(differ, *shapes)):
        raise LoopError(
            f"the body changes the state from shape {_shown(shapes[0])} to {_shown(shapes[1])}. A learned "
            "halt adds up the states of all iterations, so the body must preserve the shape.",
            path="body",
        )
    return pytree.tree_map(lambda a, b: a + b if isinstance(a, Tensor) else b, total, weighted)
