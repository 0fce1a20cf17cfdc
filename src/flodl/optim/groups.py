"""Building parameter groups for an optimizer from patterns over parameter names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flodl.core import PathError
from flodl.core.formats import a_type
from flodl.core.paths import matches, suggestion
from flodl.core.usage.calls import PathCallError, explain_calls

from .misspelled_options import misspelled_name

if TYPE_CHECKING:
    from torch import nn


@explain_calls(PathCallError, example="Write groups(model, {'**.bias': {'weight_decay': 0.0}}, lr=1e-3).")
def groups(
    model: nn.Module, options: Mapping[str, Mapping[str, Any]], /, **defaults: Any
) -> list[dict[str, Any]]:
    """Put every parameter of a model into one group, by the first pattern that matches its name.

    The first group contains the parameters that match no pattern, with the defaults; then comes one group per
    pattern, in the given order. Options of several patterns are not combined: put the narrower pattern first.
    Frozen parameters are included, so that they can be thawed later. A shared parameter matches by any of its
    names.

    >>> import torch
    >>> model = torch.nn.ModuleDict({"encoder": torch.nn.Linear(2, 2), "head": torch.nn.Linear(2, 2)})
    >>> found = groups(model, {"**.bias": {"weight_decay": 0.0}, "encoder.**": {"lr": 1e-4}}, lr=1e-3)
    >>> [(len(group["params"]), {k: v for k, v in group.items() if k != "params"}) for group in found]
    [(1, {'lr': 0.001}), (2, {'lr': 0.001, 'weight_decay': 0.0}), (1, {'lr': 0.0001})]
    >>> optimizer = torch.optim.AdamW(found)
    """
    if not hasattr(model, "named_parameters"):
        raise PathError(
            f"the model is {a_type(model)}, which has no parameter names. Pass the model itself: "
            "groups(model, {'**.bias': {'weight_decay': 0.0}})."
        )
    if not isinstance(options, Mapping):
        raise PathError(
            f"the options are {options!r:.100}. Pass a dictionary of patterns, each with its options, "
            "for example {'**.bias': {'weight_decay': 0.0}}."
        )
    _check_names("the defaults", defaults)
    names_of: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names_of.setdefault(parameter, []).append(name)
    pattern_of: dict[nn.Parameter, str] = {}
    found: list[dict[str, Any]] = []
    for pattern, settings in options.items():
        _check_settings(pattern, settings, defaults)
        matching = [p for p, names in names_of.items() if any(matches(pattern, name) for name in names)]
        if not matching:
            raise _no_match(pattern, [name for names in names_of.values() for name in names])
        free = [parameter for parameter in matching if parameter not in pattern_of]
        if not free:
            raise _nothing_left(pattern, list(dict.fromkeys(pattern_of[parameter] for parameter in matching)))
        pattern_of.update(dict.fromkeys(free, pattern))
        found.append({"params": free, **defaults, **settings})
    rest = [parameter for parameter in names_of if parameter not in pattern_of]
    return [{"params": rest, **defaults}, *found] if rest else found


def _check_settings(pattern: str, settings: Any, defaults: Mapping[str, Any]) -> None:
    if not isinstance(settings, Mapping) or "params" in settings:
        raise PathError(
            f"the options for {pattern!r} are {settings!r}. "
            "Pass a dictionary of optimizer options, for example {'lr': 1e-4}, without 'params'."
        )
    _check_names(f"the options for {pattern!r}", settings, [*defaults])


def _check_names(where: str, settings: Mapping[str, Any], others: Sequence[str] = ()) -> None:
    """Raise for an option that no optimizer has and that is nearly the name of one: torch ignores it."""
    for name in settings:
        if meant := misspelled_name(name, others):
            raise PathError(
                f"{where} contain {name!r}, an option that torch's optimizers ignore. Did you mean {meant!r}?"
            )


def _no_match(pattern: str, names: list[str]) -> PathError:
    below = [name for name in names if matches(f"{pattern}.**", name)]
    if below:
        hint = f"To take everything below it, write '{pattern}.**'."
    else:
        hint = suggestion(pattern, names, known_as="parameters")
    return PathError(f"the pattern {pattern!r} matches no parameter. {hint}")


def _nothing_left(pattern: str, earlier: list[str]) -> PathError:
    takers = " and ".join(map(repr, earlier))
    return PathError(
        f"every parameter that {pattern!r} matches already belongs to {takers}. "
        f"The first matching pattern wins: put {pattern!r} first, or remove it."
    )
