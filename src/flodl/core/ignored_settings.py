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
from typing import Any, Literal, NamedTuple

Values = Mapping[str, Sequence[Any]]
# What else may read an option of the program, by its part of the record.
_READERS = frozenset(
    {
        "step",
        "metrics",
        "outputs",
        "hooks",
        "torch_hooks",
        "optimizer_attributes",
        "model",
        "data",
        "eval_data",
    }
)
# The seed of a loader follows that of the run.
_NOT_READ = frozenset({"data.seed", "eval_data.seed"})
# Names that mean nothing else.
_SAME = {
    "lr": ("learning_rate",),
    "initial_lr": ("lr", "learning_rate"),
    "max_lr": ("lr", "learning_rate"),
    "weight_decay": ("wd",),
}
# Names that are probably meant, as part of a longer one, too: head_lr, beta1.
_RELATED = {
    "lr": ("lr", "learning_rate"),
    "initial_lr": ("lr", "learning_rate"),
    "max_lr": ("lr", "learning_rate"),
    "weight_decay": ("weight_decay", "decay", "wd", "l2"),
    "betas": ("betas", "beta", "beta1", "beta2"),
    "momentum": ("momentum", "mom"),
    "eps": ("eps", "epsilon"),
}
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


def ignored_as(path: str, now: Any, before: Any, *, ignored: Values, saved: Values) -> str | None:
    """Return the ignored setting that a program option was meant for, if any.

    `ignored` are the values of the program in whose place the `saved` ones apply, by name. An option with a
    name of its own, such as `head_lr`, has to have both: an ignored value, and before that a saved one. One
    with the same name may be scaled first: it changed by the factor by which the ignored value differs.

    >>> known = {"ignored": {"lr": [0.001]}, "saved": {"lr": [0.01]}}
    >>> ignored_as("config.learning_rate", 0.001, 0.01, **known)
    'lr'
    >>> ignored_as("head_lr", 0.001, 0.01, **known), ignored_as("min_lr", 0.001, 0.0, **known)
    ('lr', None)
    >>> ignored_as("config.lr", 0.2, 0.1, ignored={"lr": [0.05]}, saved={"lr": [0.025]})
    'lr'
    """
    last, words = path.rpartition(".")[2], f"_{_snake_case(path)}_"
    for name, values in ignored.items():
        has_name = _snake_case(last) in (name, *_SAME.get(name, ()))
        if has_name and _is_scaled(now, before, values, saved.get(name, ())):
            return name
        if not _contains(values, now):
            continue
        if has_name:
            return name
        is_related = any(f"_{one}_" in words for one in _RELATED.get(name, (name,)))
        if is_related and _contains(saved.get(name, ()), before):
            return name
    return None


class Change(NamedTuple):
    """A value in the record of a run that changed, by its path."""

    path: str
    now: Any
    before: Any


def read_changes(now: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[Change, ...]:
    """Return what changed in the parts of a record that describe the step function and other readers.

    >>> now, before = {"step": {"lr": 0.1, "scale": 2}, "config": {}}, {"step": {"lr": 0.2, "scale": 2}}
    >>> read_changes(now, before)
    (Change(path='step.lr', now=0.1, before=0.2),)
    """
    return tuple(
        change
        for name, value in now.items()
        if name.partition(".")[0] in _READERS and name in before
        for change in _changes(name, value, before[name])
        if change.path not in _NOT_READ
    )


def _changes(path: str, now: Any, before: Any) -> Iterator[Change]:
    if isinstance(now, Mapping) and isinstance(before, Mapping):
        for name, value in now.items():
            if name in before:
                yield from _changes(f"{path}.{name}", value, before[name])
    elif isinstance(now, list) and isinstance(before, list) and any(isinstance(one, Mapping) for one in now):
        for value, earlier in zip(now, before):
            yield from _changes(path, value, earlier)
    elif not is_same_setting(now, before):
        yield Change(path, now, before)


@dataclass(frozen=True)
class Ignored:
    """Settings without effect by name: of this start of a run, and of the one before.

    `saved` are the values that apply in their place, `read` what changed for others that read an option, too.
    """

    now: dict[str, list[Any]] = field(default_factory=dict)
    before: dict[str, list[Any]] = field(default_factory=dict)
    saved: dict[str, list[Any]] = field(default_factory=dict)
    read: tuple[Change, ...] = ()

    def effect_of(self, path: str, now: Any, before: Any) -> Literal["changed", "ignored", "none"]:
        """Return what the change of an option means; "none" if it has its value again after one was ignored.

        >>> Ignored(before={"lr": [0.001]}, saved={"lr": [0.01]}).effect_of("config.lr", 0.01, 0.001)
        'none'
        >>> read = (Change("step.lr", 0.01, 0.001),)
        >>> Ignored({"lr": [0.01]}, saved={"lr": [0.001]}, read=read).effect_of("config.lr", 0.01, 0.001)
        'changed'
        """
        if self.ignored_as(path, now, before):
            return "ignored"
        name = _unless_read(self.read, path, before, now, ignored=self.before, saved=self.saved)
        if name is None:
            return "changed"
        saved = self.saved.get(name, ())
        is_back = _contains(saved, now) or _is_scaled(before, now, self.before[name], saved)
        return "none" if is_back else "changed"

    def kept(self, path: str) -> str | None:
        """Return the setting with the same name as an option if this start ignores the program's value.

        >>> Ignored({"lr": [0.01]}).kept("config.learning_rate"), Ignored().kept("config.learning_rate")
        ('lr', None)
        """
        last = _snake_case(path.rpartition(".")[2])
        return next(
            (name for name in _RELATED if name in self.now and last in (name, *_SAME.get(name, ()))), None
        )

    def ignored_as(self, path: str, now: Any, before: Any) -> str | None:
        """Return which setting an option was meant for if that is ignored and nothing else reads it."""
        return _unless_read(self.read, path, now, before, ignored=self.now, saved=self.saved)


def _unless_read(read: Sequence[Change], path: str, now: Any, before: Any, **known: Values) -> str | None:
    """Return which ignored setting an option was meant for, unless something else reads it.

    A value in the record that has its meaning and changed in the same way was read from it.
    """
    name = ignored_as(path, now, before, **known)
    for change in read if name else ():
        values = change.now, change.before
        if (is_same_setting(values, (now, before)) or is_same_setting(values, (before, now))) and (
            ignored_as(change.path, now, before, **known) == name
        ):
            return None
    return name


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


def _is_scaled(now: Any, before: Any, ignored: Sequence[Any], saved: Sequence[Any]) -> bool:
    """Return whether an ignored value differs from a saved one by the factor between two values of an option.

    >>> [_is_scaled(0.2, 0.1, ignored=[0.05], saved=[saved]) for saved in (0.025, 0.05)]
    [True, False]
    """
    if not (_is_factor(now) and _is_factor(before)):
        return False
    own, kept = filter(_is_factor, _parts(ignored)), [*filter(_is_factor, _parts(saved))]
    return any(is_same_setting(now / before, one / other) for one in own for other in kept)


def _is_factor(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value != 0
    )


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
