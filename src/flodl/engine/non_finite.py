"""Finds where a value that is not finite came from: the batch, a module, the step function or a backward."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from flodl.core import StepError
from flodl.core.formats import a_type
from flodl.core.usage.calls import explain_calls

from .batch.samples import num_samples
from .errors import StepCallError
from .mistakes.empty_batch import EMPTY_BATCH_ADVICE, empty_batch
from .mistakes.step_function import signature_mismatch
from .rehearsal import rehearse, sandbox
from .step import TrainStep

_EXAMPLE = "Write find_non_finite(step, (x, y)), with the arguments of the step as one tuple."


@dataclass(frozen=True)
class NonFinite:
    """Where a value was not finite first: in words, with the path of the module and the rows of the batch."""

    what: str
    path: str = ""
    rows: tuple[int, ...] = ()
    in_batch: bool = False
    # What to do, if that is known.
    advice: str = ""


@explain_calls(StepCallError, example=_EXAMPLE)
def find_non_finite(step: TrainStep, batch: tuple[Any, ...]) -> NonFinite | None:
    """Run forward and backward of a batch again, in a sandbox; return the first value that is not finite.

    Return None if everything is finite this time. Raise NotRestorable if the step cannot be run again
    without a trace.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> _ = model[0].weight.data.fill_(1e38)
    >>> step = TrainStep(
    ...     model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x).square().mean()
    ... )
    >>> found = find_non_finite(step, (torch.full((3, 2), 1e3),))
    >>> found.path, found.what, found.rows
    ('0', 'the output of this Linear is the first one that is not finite', (0, 1, 2))
    """
    if not isinstance(step, TrainStep):
        raise StepError(f"find_non_finite got {a_type(step)}, expected a TrainStep. {_EXAMPLE}")
    if not isinstance(batch, tuple | list):
        raise StepError(f"find_non_finite got {a_type(batch)} as the batch. {_EXAMPLE}")
    batch, extra = tuple(batch), ("mask",) if step.settings.tail == "pad" else ()
    if (mismatch := signature_mismatch(step._body.step_fn, batch, extra)) is not None:
        raise StepCallError(mismatch)
    model, samples = step._body.model, num_samples(batch)
    for name, parameter in model.named_parameters():
        if not _is_finite(parameter):
            return NonFinite("this parameter is not finite", name)
    with sandbox(step, batch), _eagerly(), _Observed(model) as observed:
        loss, values = rehearse(step, batch)
        if not samples and not _is_finite(loss) and (told := empty_batch(step._body.step_fn, batch)):
            return NonFinite(f"the loss is not finite because {told}", advice=f"{EMPTY_BATCH_ADVICE}.")
        if (found := _in_forward(observed, batch, samples)) is not None:
            return found
        if not _is_finite(loss):
            bad = [name for name, value in values.items() if not _is_finite(value)]
            named = f" (and {', '.join(map(repr, bad))})" if bad else ""
            last = f" after {observed.order[-1]!r}" if observed.order else ""
            return NonFinite(
                f"every module returned finite values, but the loss{named} is not finite: look at what the "
                f"step function computes{last}"
            )
        return _in_backward(observed, model, loss)


def report_elsewhere(step: TrainStep) -> None:
    """Let a step print no warnings about skipped updates and chosen modes: the caller reports them."""
    step._watch.is_reported_elsewhere = True


@dataclass
class _Call:
    """What was seen of one call of a module: its class, whether values are finite, and gradients."""

    kind: str
    is_leaf: bool
    finite_inputs: bool
    finite_outputs: bool
    only_minus_infinity: bool
    outputs: list[Tensor]
    finite_output_grads: bool = True
    finite_input_grads: bool = True
    seen: dict[str, bool] = field(default_factory=dict)


class _Observed:
    """The calls of all modules inside the context, in the order in which they returned."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: dict[str, _Call] = {}
        self._model, self._stack = model, ExitStack()

    @property
    def order(self) -> list[str]:
        return [path for path in self.calls if path]

    def __enter__(self) -> _Observed:
        for path, module in self._model.named_modules():
            try:
                handle = module.register_forward_hook(self._hook(path), with_kwargs=True)
            except RuntimeError:  # a scripted module
                continue
            self._stack.callback(handle.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _hook(self, path: str) -> Callable[..., None]:
        def seen(module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
            if path in self.calls and not self.calls[path].finite_outputs:
                return  # a module that is called several times: its first bad call counts
            self.calls.pop(path, None)
            inputs, outputs = _floats((args, dict(kwargs))), _floats(output)
            call = _Call(
                type(module).__name__,
                is_leaf=next(module.children(), None) is None,
                finite_inputs=_all_finite(inputs),
                finite_outputs=_all_finite(outputs),
                only_minus_infinity=not any(map(_has_more_than_minus_infinity, outputs)),
                outputs=outputs,
            )
            self.calls[path] = call
            self._watch(inputs, call, "finite_input_grads")
            self._watch(outputs, call, "finite_output_grads")

        return seen

    def _watch(self, tensors: list[Tensor], call: _Call, name: str) -> None:
        """Note whether the gradients of these tensors are finite."""

        def note(grad: Tensor) -> None:
            if not _is_finite(grad):
                setattr(call, name, False)

        for tensor in tensors:
            if tensor.requires_grad:
                self._stack.callback(tensor.register_hook(note).remove)  # type: ignore[no-untyped-call]


def _in_forward(observed: _Observed, batch: tuple[Any, ...], samples: int) -> NonFinite | None:
    """Return the first module whose output is not finite; minus infinity alone may be a mask."""
    bad = [(path, call) for path, call in observed.calls.items() if not call.finite_outputs]
    if not bad:
        return None
    path, call = next(((p, c) for p, c in bad if not c.only_minus_infinity), bad[0])
    rows = _bad_rows(call.outputs, samples)
    if call.finite_inputs:
        return NonFinite(f"the output of this {call.kind} is the first one that is not finite", path, rows)
    of_batch = [(index, part) for index, part in enumerate(batch) if not _all_finite(part)]
    if of_batch:
        index, part = of_batch[0]
        rows = _bad_rows(_floats(part), samples) or rows
        what = (
            f"part {index} of the batch is not finite; the output of this {call.kind} is the first to show it"
        )
        return NonFinite(what, path, rows, in_batch=True)
    what = f"this {call.kind} is the first module that receives a value that is not finite"
    return NonFinite(what, path, rows)


def _in_backward(observed: _Observed, model: nn.Module, loss: Tensor) -> NonFinite | None:
    """Return the first module whose backward returns a gradient that is not finite."""
    for parameter in model.parameters():
        parameter.grad = None
    operation = _FirstOperation(loss)
    loss.backward()  # type: ignore[no-untyped-call]
    calls = list(reversed(observed.calls.items()))
    own = {path: [*module.parameters(recurse=False)] for path, module in model.named_modules()}
    bad_parameters = {
        path
        for path, parameters in own.items()
        if not all(parameter.grad is None or _is_finite(parameter.grad) for parameter in parameters)
    }
    if all(c.finite_output_grads and c.finite_input_grads for _, c in calls) and not bad_parameters:
        return None
    for path, call in calls:
        if not call.finite_output_grads:
            what = f"the gradient that arrives at the output of this {call.kind} is not finite{operation}"
            return NonFinite(what, path)
        if call.is_leaf and (not call.finite_input_grads or path in bad_parameters):
            return NonFinite(
                f"the backward of this {call.kind} is the first that is not finite{operation}", path
            )
    path = next(iter(bad_parameters), "")
    return NonFinite(f"the gradients of the parameters of this module are not finite{operation}", path)


class _FirstOperation:
    """The first operation of a backward that turns finite gradients into non-finite ones."""

    def __init__(self, loss: Tensor) -> None:
        self.name = ""
        waiting, known = [loss.grad_fn], {None, loss.grad_fn}
        while waiting:
            node = waiting.pop()
            if node is None:
                continue
            node.register_hook(self._hook(node.name()))
            following = [inner for inner, _ in node.next_functions if inner not in known]
            known.update(following)
            waiting.extend(following)

    def _hook(self, name: str) -> Callable[..., None]:
        def note(grad_inputs: Any, grad_outputs: Any) -> None:
            if not self.name and not _all_finite(grad_inputs) and _all_finite(grad_outputs):
                self.name = re.sub(r"Backward\d*$", "", name)

        return note

    def __str__(self) -> str:
        return f" (the operation is {self.name})" if self.name else ""


@contextmanager
def _eagerly() -> Iterator[None]:
    """Do not run compiled code, which calls no hooks."""
    with torch.compiler.set_stance("force_eager"):
        yield


def _floats(values: Any) -> list[Tensor]:
    """Return the dense tensors in a nested structure that may contain non-finite values."""
    leaves = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]
    return [one for one in leaves if (one.is_floating_point() or one.is_complex()) and not one.is_sparse]


def _all_finite(values: Any) -> bool:
    return all(map(_is_finite, _floats(values)))


def _is_finite(value: Tensor) -> bool:
    return bool(value.detach().isfinite().all())


def _has_more_than_minus_infinity(value: Tensor) -> bool:
    return (
        bool((value.isnan() | value.isposinf()).any()) if value.is_floating_point() else not _is_finite(value)
    )


def _bad_rows(tensors: list[Tensor], samples: int) -> tuple[int, ...]:
    """Return the rows that are not finite, where a tensor has one row for each sample."""
    for tensor in tensors:
        if tensor.dim() and len(tensor) == samples:
            finite = tensor.detach().isfinite().reshape(samples, -1).all(1)
            if not bool(finite.all()):
                return tuple((~finite).nonzero().flatten().tolist())
    return ()
