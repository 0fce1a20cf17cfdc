"""The parts of a run before it trains: the step function with all that it reads, modules, data.

Training changes some of it, such as a list that the step function fills, so it is taken before that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flodl.core.contents import Contents
from flodl.engine import trained_by_others
from flodl.monitor.run_settings.modules import describe_classes, describe_modules
from flodl.monitor.run_settings.optimizer import describe_attributes
from flodl.monitor.run_settings.step_function import describe_step_function, known_objects, read_in

from ..evaluation.evaluator import Evaluator
from ..session import Session
from .changes import changed_modules, changes
from .torch_hooks import describe_torch_hooks


def observe(session: Session, evaluator: Evaluator, *, with_others: bool = True) -> dict[str, Any]:
    """Describe the step function, the metrics and the modules, each with what it reaches.

    Without `with_others`, tensors that other steps of this process have trained have no values.
    """
    known = known_objects(session.model, session.optimizer)
    if not with_others:
        known = {id(one): "trained by another step" for one in trained_by_others(session.train_step)} | known
    outputs = evaluator.outputs
    return {
        **describe_step_function(evaluator.step_fn, known),
        "metrics": {name: Contents(known).of(metric) for name, metric in evaluator.metrics.items()},
        "outputs": None if outputs is None else Contents(known).of(outputs),
        "modules": describe_modules(session.model),
        "classes": describe_classes(session.model, known, read_in(evaluator.step_fn)),
        "torch_hooks": describe_torch_hooks(session.model, session.optimizer, known),
        "optimizer_attributes": describe_attributes(session.optimizer, known),
    }


def without_states(before: Any, ended: Any, now: Any) -> Any:
    """Return what is observed now, except that what training changed is as it was before it trained."""
    if now == ended:
        return before
    if isinstance(before, dict) and isinstance(ended, dict) and isinstance(now, dict):
        return {name: without_states(before.get(name), ended.get(name), one) for name, one in now.items()}
    return now


def without_others(before: Any, now: Any, masked: Any) -> Any:
    """Return what was observed before, but with the present values of tensors that other steps have trained.

    `masked` is what is observed now without them.
    """
    if masked == now:
        return before
    if isinstance(before, dict) and isinstance(now, dict) and isinstance(masked, dict):
        found = {name: without_others(before.get(name), now.get(name), masked.get(name)) for name in now}
        return {**before, **{name: one for name, one in found.items() if name in before}}
    return now


def changed_observed(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Describe what changed since the trainer trained last, one line each."""
    parts = {name: item for name, item in now.items() if name != "modules"}
    lines = list(changes("", parts, {name: before.get(name) for name in parts}))
    return lines + list(changed_modules(now, before))
