"""Settings of a program that had no effect because a run was resumed, by their names and values.

A resumed run continues with its seed, and with the settings of the optimizer and of hooks that were saved.
What the program set in their place is known by the name that the optimizer has for it; the options of the
program may have others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Values = Mapping[str, Sequence[Any]]
# Names that mean nothing else.
_SAME = {"lr": ("learning_rate",), "weight_decay": ("wd",)}
# Names that are probably meant, as part of a longer one, too: head_lr, beta1.
_RELATED = {
    "lr": ("lr", "learning_rate"),
    "weight_decay": ("weight_decay", "decay", "wd", "l2"),
    "betas": ("betas", "beta", "beta1", "beta2"),
    "momentum": ("momentum", "mom"),
    "eps": ("eps", "epsilon"),
}
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


def ignored_as(path: str, now: Any, before: Any, *, ignored: Values, saved: Values) -> str | None:
    """Return the ignored setting that a program option was meant for, if any.

    `ignored` are the values of the program in whose place the `saved` ones apply, by name. An option with a
    name of its own, such as `head_lr`, has to have both: an ignored value, and before that a saved one.

    >>> known = {"ignored": {"lr": [0.001]}, "saved": {"lr": [0.01]}}
    >>> ignored_as("config.learning_rate", 0.001, 0.01, **known)
    'lr'
    >>> ignored_as("head_lr", 0.001, 0.01, **known), ignored_as("min_lr", 0.001, 0.0, **known)
    ('lr', None)
    """
    last, words = path.rpartition(".")[2], f"_{_snake_case(path)}_"
    for name, values in ignored.items():
        if not _contains(values, now):
            continue
        if _snake_case(last) in (name, *_SAME.get(name, ())):
            return name
        is_related = any(f"_{one}_" in words for one in _RELATED.get(name, (name,)))
        if is_related and _contains(saved.get(name, ()), before):
            return name
    return None


@dataclass(frozen=True)
class Ignored:
    """Settings without effect by name: of this start of a run, and of the one before.

    `saved` are the values that apply in their place.
    """

    now: dict[str, list[Any]] = field(default_factory=dict)
    before: dict[str, list[Any]] = field(default_factory=dict)
    saved: dict[str, list[Any]] = field(default_factory=dict)

    def effect_of(self, path: str, now: Any, before: Any) -> Literal["changed", "ignored", "none"]:
        """Return what the change of an option means; "none" if it has its value again after one was ignored.

        >>> Ignored(before={"lr": [0.001]}, saved={"lr": [0.01]}).effect_of("config.lr", 0.01, 0.001)
        'none'
        """
        if ignored_as(path, now, before, ignored=self.now, saved=self.saved):
            return "ignored"
        name = ignored_as(path, before, now, ignored=self.before, saved=self.saved)
        return "none" if name and _contains(self.saved.get(name, ()), now) else "changed"


def joined(*values: Values) -> dict[str, list[Any]]:
    """Return the values of all by name.

    >>> joined({"lr": [0.1]}, {"lr": [0.2], "seed": [1]})
    {'lr': [0.1, 0.2], 'seed': [1]}
    """
    names = dict.fromkeys(name for each in values for name in each)
    return {name: [one for each in values for one in each.get(name, ())] for name in names}


def is_same_setting(one: Any, other: Any) -> bool:
    """Return whether two values are equal, up to the rounding of a rate that was on a device."""
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(is_same_setting, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def _contains(values: Sequence[Any], value: Any) -> bool:
    return any(is_same_setting(value, one) for one in _parts(values))


def _parts(values: Sequence[Any]) -> Iterator[Any]:
    """Yield values, and the numbers in those that are tuples, such as betas."""
    for value in values:
        yield value
        if isinstance(value, tuple | list):
            yield from value


def _snake_case(name: str) -> str:
    """Return the words of a name in lower case.

    >>> _snake_case("config.headLR"), _snake_case("optim.weight-decay")
    ('config_head_lr', 'optim_weight_decay')
    """
    return "_".join(_WORD.findall(name)).lower()
