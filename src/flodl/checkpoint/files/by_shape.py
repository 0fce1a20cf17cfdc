"""Match the tensors of a file to the names of a model by shape, without mixing weights and biases."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

# What the last part of a name says about a tensor, and what it is called elsewhere.
_OTHER_NAMES = {"gamma": "weight", "scale": "weight", "kernel": "weight", "beta": "bias", "shift": "bias"}
_OWN_NAMES = ("weight", "bias", "running_mean", "running_var", "in_proj_weight", "in_proj_bias")
_ROLES = {**{name: name for name in _OWN_NAMES}, **_OTHER_NAMES}


def match_by_shape(
    sources: dict[str, str], stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """Add the first remaining tensor of the same shape and type for each name that has none.

    A tensor whose name ends in the same way comes first, and a weight is never taken for a bias. Returned are
    the names whose tensor may be a wrong one: the file has more, or fewer, of them than the model, or only
    the order decided between several.
    """
    available = [old for old in stored if old not in {*sources.values()}]
    open_names = [name for name in wanted if name not in sources]
    candidates = [*available]
    there = Counter(_kind(name, stored[name]) for name in available)
    here = Counter(_kind(name, wanted[name]) for name in open_names)
    added: list[str] = []

    def match(fits: Callable[[str, str], bool]) -> None:
        for name in [name for name in open_names if name not in sources]:
            for old in available:
                if _same(stored[old], wanted[name]) and fits(old, name):
                    available.remove(old)
                    sources[name] = old
                    added.append(name)
                    break

    match(lambda old, name: _last(old) == _last(name))
    match(_may_be_same)
    kinds = {name: _kind(name, wanted[name]) for name in added}

    def is_guessed(name: str) -> bool:
        fitting = [old for old in candidates if _same(stored[old], wanted[name]) and _may_be_same(old, name)]
        return there[kinds[name]] not in (0, here[kinds[name]]) or not _stands_out(
            sources[name], name, fitting
        )

    return tuple(name for name in added if is_guessed(name))


def _stands_out(old: str, new: str, candidates: Iterable[str]) -> bool:
    """Return whether a name has more words and numbers in common with a new one than any other candidate.

    >>> _stands_out("layers.0.q", "blocks.0.query", ["layers.0.q", "layers.1.q"])
    True
    >>> _stands_out("q.weight", "key.weight", ["q.weight", "k.weight"])
    False
    """
    words = _words(new)
    most = len(words & _words(old))
    return all(len(words & _words(other)) < most for other in candidates if other != old)


def _words(name: str) -> set[str]:
    return {*re.findall(r"[a-z]+|[0-9]+", name.lower())}


def _may_be_same(old: str, new: str) -> bool:
    """Return whether two names may belong to the same tensor: not if one is a weight and one a bias.

    >>> _may_be_same("norm.gamma", "norm.weight"), _may_be_same("norm.weight", "norm.bias")
    (True, False)
    """
    roles = _ROLES.get(_last(old)), _ROLES.get(_last(new))
    return None in roles or roles[0] == roles[1]


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _kind(name: str, tensor: Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.dtype, _ROLES.get(_last(name))


def _last(name: str) -> str:
    return re.split(r"[./]", name)[-1]
