"""The metrics that callbacks watch, and whether other callbacks may add metrics of their own."""

from __future__ import annotations

import dis
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

from flodl.checkpoint import Policy
from flodl.core import TrainError
from flodl.core.paths import suggestion

from .patience import Added, is_evaluated
from .standard import MetricWatcher, Phase

# What a callback uses to add an item to a dictionary.
_ADDING_METHODS = frozenset({"update", "setdefault", "__setitem__", "__ior__"})
_HOOKS_WITH_METRICS = ("on_evaluate_end", "on_epoch_end")


def watched_metrics(callbacks: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield the class name of each callback with each metric it watches.

    The callbacks of flodl have one in `metric`. Any callback may list some in `watches`.

    >>> class Mine:
    ...     watches = ("eval_f1", "lr")
    >>> list(watched_metrics([Mine()]))
    [('Mine', 'eval_f1'), ('Mine', 'lr')]
    """
    for callback in callbacks:
        names = getattr(callback, "watches", ())
        for name in (names,) if isinstance(names, str) else names:
            yield type(callback).__name__, name


def all_watched(callbacks: Iterable[Any], keep: Policy | None) -> list[tuple[str, str]]:
    """Return who watches which metric: the callbacks, and the policy of the bundles."""
    kept = () if keep is None else keep.metrics
    return [*watched_metrics(callbacks), *((f"keep={keep}", name) for name in kept)]


def lacks_evaluation(name: str, known: Iterable[str]) -> bool:
    """Return whether a metric comes from an evaluation, and nothing known does.

    >>> lacks_evaluation("eval_loss", ["loss", "lr"]), lacks_evaluation("eval_los", ["loss", "eval_loss"])
    (True, False)
    """
    return is_evaluated(name) and not any(map(is_evaluated, known))


def unknown_watched(who: str, name: str, names: Collection[str]) -> TrainError:
    """Return the error for a hook or a policy that watches a metric which the run does not have."""
    advice = " Pass eval_data to have it." if lacks_evaluation(name, names) else ""
    return TrainError(
        f"{who} watches {name!r}, which this run does not have.{advice} "
        f"{suggestion(name, sorted(names), known_as='metrics')} Nothing was trained."
    )


def watched_matrix(who: str, name: str, names: Collection[str]) -> TrainError:
    """Return the error for a hook or a policy that watches a metric which is a matrix."""
    numbers = ", ".join(repr(one) for one in sorted(names) if is_evaluated(one))
    return TrainError(
        f"{who} watches {name!r}, which is a matrix, and only numbers can be compared. "
        f"Watch one of {numbers}. Nothing was trained."
    )


def without_evaluation(
    watched: Iterable[tuple[str, str]], history: Sequence[Collection[str]]
) -> Iterator[str]:
    """Yield a warning for each metric of earlier evaluations in a run that has none; raise if it is new.

    >>> [*without_evaluation([("EarlyStopping", "eval_loss")], [{"eval_loss": 1.0}])][0][:68]
    "EarlyStopping watches 'eval_loss', and there is no eval_data: it has"
    """
    for who, name in watched:
        if not is_evaluated(name):
            continue
        if not any(name in row for row in history):
            raise unknown_watched(who, name, {"loss", "lr"}.union(*history))
        yield f"{who} watches {name!r}, and there is no eval_data: it has no effect in this call of fit."


def notes_of(callbacks: Iterable[Any], keep: Policy | None) -> list[str]:
    """Return what the callbacks of flodl and the policy decided by the names of their metrics."""
    notes = [one.mode_note for one in callbacks if isinstance(one, MetricWatcher) and one.mode_note]
    return [*notes, *(() if keep is None else (f"keep={note}" for note in keep.notes))]


def late_phases(callbacks: Iterable[Any], epochs: int) -> Iterator[str]:
    """Yield a warning for each phase of an epoch that the run does not have.

    >>> [*late_phases([Phase(10, thaw=["encoder"]), Phase(1)], epochs=2)][0][:60]
    "Phase(10, freeze=[], thaw=['encoder'], eval_mode=False) has "
    """
    for callback in callbacks:
        if isinstance(callback, Phase) and callback.epoch >= epochs:
            yield (
                f"{callback} has no effect: epochs are counted from 0, and the last one of this run is "
                f"{epochs - 1}."
            )


def may_add_metrics(callbacks: Iterable[Any]) -> bool:
    """Return whether a callback may add a metric to those of an evaluation or an epoch.

    >>> class Reports:
    ...     __module__ = "mine"
    ...
    ...     def on_epoch_end(self, metrics):
    ...         print(metrics["loss"])
    >>> class Adds:
    ...     __module__ = "mine"
    ...
    ...     def on_evaluate_end(self, metrics):
    ...         metrics["error"] = 1 - metrics["accuracy"]
    >>> may_add_metrics([Reports()]), may_add_metrics([Reports(), Adds()])
    (False, True)
    """
    return any(_adds_items(code) for callback in callbacks for code in _codes(callback))


def how_added(name: str, callbacks: Iterable[Any]) -> Added:
    """Return whether the code of the callbacks adds a metric.

    >>> class Adds:
    ...     __module__ = "mine"
    ...
    ...     def on_epoch_end(self, metrics, epoch):
    ...         if epoch % 2:
    ...             metrics["fid"] = 1.0
    >>> how_added("fid", [Adds()]), how_added("kid", [Adds()]), how_added("kid", [])
    ('named', 'maybe', 'never')
    """
    codes = [code for callback in callbacks for code in _codes(callback)]
    if not any(map(_adds_items, codes)):
        return "never"
    names = {name, name.removeprefix("eval_")}
    return "named" if any(names.intersection(_texts(code)) for code in codes) else "maybe"


def never_measured(
    watched: Iterable[tuple[str, str]], history: Sequence[Collection[str]], callbacks: Sequence[Any]
) -> Iterator[str]:
    """Yield a warning for each metric that hooks were expected to add and that no epoch has.

    >>> [*never_measured([("EarlyStopping", "fid")], [{"loss": 1.0}], [])]
    []
    """
    known = sorted(set().union(*history))
    for who, name in watched:
        if name not in known and not lacks_evaluation(name, known) and how_added(name, callbacks) != "never":
            hint = suggestion(name, known, known_as="metrics")
            yield f"{who} watches {name!r}, which no epoch of this run has, so it had no effect. {hint}"


def _texts(code: CodeType) -> set[str]:
    """Return the string constants of code, with those of inner functions."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return {one for one in code.co_consts if isinstance(one, str)}.union(*map(_texts, inner))


def _codes(callback: Any) -> Iterator[CodeType]:
    """Yield the code that runs when a callback receives metrics: the hook, and the methods of its class."""
    if isinstance(callback, FunctionType):
        if callback.__name__ in _HOOKS_WITH_METRICS:
            yield callback.__code__
        return
    if not any(hasattr(callback, hook) for hook in _HOOKS_WITH_METRICS):
        return
    for kind in type(callback).__mro__:
        if kind.__module__.partition(".")[0] != "flodl":
            yield from (value.__code__ for value in vars(kind).values() if isinstance(value, FunctionType))


def _adds_items(code: CodeType) -> bool:
    if _ADDING_METHODS.intersection(code.co_names):
        return True
    if any(step.opname == "STORE_SUBSCR" for step in dis.get_instructions(code)):
        return True
    return any(_adds_items(inner) for inner in code.co_consts if isinstance(inner, CodeType))
