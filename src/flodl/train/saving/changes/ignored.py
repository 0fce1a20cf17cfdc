"""The settings of a program that a resumed run ignores, and the saved ones that apply instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flodl.core.ignored_settings import Ignored, Values, is_same_setting, joined, read_changes

from ...learning_rate import group_rates, group_ratios, optimizer_settings
from ...record.hooks import ignored_in_hooks
from ...session import Session
from .changed_optimizer import ignored_settings

Groups = Iterable[Mapping[str, Any]]
# The parts of a record that list them: those of the optimizer, and others.
RECORDED = ("ignored_optimizer_settings", "ignored_settings")


@dataclass(frozen=True)
class Rates:
    """The rates of groups that were given to a schedule, and their ratios to its rate, which are kept."""

    rates: tuple[float, ...]
    ratios: tuple[float, ...]

    @classmethod
    def of(cls, session: Session) -> Rates:
        """Return those of a run; empty ones without a schedule."""
        bridge = session.train_step.schedule
        return cls(group_rates(bridge), group_ratios(bridge))

    def ignored(self, loaded: Rates) -> list[float]:
        """Return the rates whose ratio is ignored, unless the same rate takes effect in another group.

        >>> Rates((0.1, 0.5), (1.0, 5.0)).ignored(Rates((0.1, 1.0), (1.0, 10.0)))
        [0.5]
        """
        found, kept = list[float](), list[float]()
        for rate, own, other in zip(self.rates, self.ratios, loaded.ratios):
            (kept if is_same_setting(own, other) else found).append(rate)
        return [rate for rate in dict.fromkeys(found) if not any(is_same_setting(rate, one) for one in kept)]


@dataclass(frozen=True)
class Replaced:
    """Values of a program by name, and the saved ones in their place."""

    own: dict[str, list[Any]]
    saved: dict[str, list[Any]]


def ignored_in_optimizer(
    session: Session,
    groups: Sequence[Mapping[str, Any]],
    rates: Rates,
    *,
    in_use: Groups | None = None,
    began_with: Groups | None,
) -> Replaced:
    """Compare the optimizer of a run that was loaded with that of this program: `groups` and `rates`.

    `in_use` are the settings that apply now, if schedulers of the program replace some of its groups.
    """
    loaded, scheduled = optimizer_settings(session.optimizer, in_use), session.schedule is not None
    found = ignored_settings(groups, loaded, at_start=began_with, scheduled=scheduled)
    saved = _values(loaded, began_with or ())
    loaded_rates = Rates.of(session)
    if ignored := rates.ignored(loaded_rates):
        found["lr"], saved["lr"] = ignored, [*loaded_rates.rates]
    return Replaced(found, saved)


def ignored_elsewhere(
    hooks: Sequence[Any], loaded_hooks: Sequence[Any], *, seeds: tuple[int, int], recorded: Mapping[str, Any]
) -> Replaced:
    """Return the hook settings and the seed that saved values replace.

    `seeds` are that of this program and that with which the run continues.
    """
    found = [*ignored_in_hooks(hooks, recorded.get("hooks") or [], loaded_hooks)]
    if seeds[0] != seeds[1]:
        found.append(("seed", *seeds))
    own = joined(*({name: [value]} for name, value, _ in found))
    return Replaced(own, joined(*({name: [value]} for name, _, value in found)))


def all_ignored(*replaced: Replaced, record: Mapping[str, Any], recorded: Mapping[str, Any]) -> Ignored:
    """Return everything that is ignored now or was ignored before, according to the saved record.

    `record` is that of this program, with the settings of hooks after their saved states were loaded.
    """
    before: list[Values] = [recorded.get(name) or {} for name in RECORDED]
    return Ignored(
        joined(*(one.own for one in replaced)),
        joined(*before),
        joined(*(one.saved for one in replaced)),
        read_changes(record, recorded),
    )


def _values(*groups: Groups) -> dict[str, list[Any]]:
    """Return the values of each setting in all groups.

    >>> _values([{"lr": 0.1}, {"lr": 0.2}], [{"lr": 0.3}])
    {'lr': [0.1, 0.2, 0.3]}
    """
    found: dict[str, list[Any]] = {}
    for name, value in (item for each in groups for group in each for item in group.items()):
        if name not in ("params", "param_names"):
            found.setdefault(name, []).append(value)
    return found
