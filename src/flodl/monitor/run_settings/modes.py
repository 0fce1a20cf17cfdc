"""Which parts of a model are frozen, and which stay in evaluation mode while it trains."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from torch import nn

from flodl.core.plain import short_hash

_MAX_NAMES = 16
_ROOT = "(root)"


def describe_modes(model: nn.Module) -> dict[str, list[str]]:
    """Return the frozen parts of a model, and those that stay in evaluation mode, by path.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> _ = model[0].requires_grad_(False), model[1].eval()
    >>> describe_modes(model)
    {'frozen': ['0'], 'evaluating': ['1']}
    """
    return {
        "frozen": condensed({name: not one.requires_grad for name, one in model.named_parameters()}),
        "evaluating": _evaluating(model),
    }


def _evaluating(model: nn.Module) -> list[str]:
    """Return what stays in evaluation mode.

    A model in evaluation mode is switched as a whole when it trains, except what a graph keeps in it.
    """
    flags: dict[str, bool] = {}
    kept: tuple[str, ...] = ()
    for path, module in model.named_modules():
        if _is_kept_in_eval(module):
            kept = (*kept, path)
        is_inside = any(path == one or path.startswith(f"{one}.") or not one for one in kept)
        # The empty name after the last dot stands for the module itself.
        flags[f"{path}." if path else ""] = is_inside or (model.training and not module.training)
    return condensed(flags)


def sets_own_modes(model: nn.Module) -> bool:
    """Return whether a module overrides `train`, and so may change modes and weights when it is switched."""
    return any(
        type(module).train is not nn.Module.train and not _is_graph(module) for module in model.modules()
    )


def _is_graph(module: nn.Module) -> bool:
    if "flodl.graph" not in sys.modules:
        return False
    from flodl.graph import Graph

    return isinstance(module, Graph)


def _is_kept_in_eval(module: nn.Module) -> bool:
    if "flodl.graph" not in sys.modules:
        return False
    from flodl.graph import is_kept_in_eval

    return is_kept_in_eval(module)


def condensed(flags: Mapping[str, bool]) -> list[str]:
    """Return the names that are set; a path stands for all names inside it.

    >>> condensed({"a.x": True, "a.y": True, "b.x": True, "b.y": False, "c.": True, "c.x": False})
    ['a', 'b.x', 'c (only itself)']
    """
    names = _condensed({tuple(name.split(".")): is_set for name, is_set in flags.items()}, "")
    if len(names) <= _MAX_NAMES:
        return names
    rest = names[_MAX_NAMES:]
    return [*names[:_MAX_NAMES], f"and {len(rest)} more #{short_hash(repr(rest).encode())}"]


def _condensed(flags: Mapping[tuple[str, ...], bool], path: str) -> list[str]:
    if not any(flags.values()):
        return []
    if all(flags.values()):
        return [path or _ROOT]
    inside: dict[str, dict[tuple[str, ...], bool]] = {}
    for name, is_set in flags.items():
        inside.setdefault(name[0], {})[name[1:]] = is_set
    found = []
    for part, rest in inside.items():
        if part:
            found += _condensed(rest, f"{path}.{part}".lstrip("."))
        elif all(rest.values()):
            found.append(f"{path or _ROOT} (only itself)")
    return found


def names_of(parameters: Sequence[nn.Parameter], model: nn.Module) -> list[str]:
    """Return the names of parameters; a path stands for all parameters inside it.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> names_of([*model[0].parameters(), model[1].bias, nn.Parameter()], model)
    ['0', '1.bias', '1 outside of the model']
    """
    chosen = {id(one) for one in parameters}
    named = dict(model.named_parameters())
    found = condensed({name: id(one) in chosen for name, one in named.items()})
    num_outside = len(chosen - {id(one) for one in named.values()})
    return found + ([f"{num_outside} outside of the model"] if num_outside else [])
