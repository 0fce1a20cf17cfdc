"""The optimizer settings of a program that a resumed run ignores, and the saved ones that apply instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flodl.core.ignored_settings import Ignored, is_same_setting

from ..learning_rate import group_rates, group_ratios, optimizer_settings
from ..session import Session
from .changed_optimizer import ignored_settings

Groups = Iterable[Mapping[str, Any]]


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
        """Return the rates whose ratio is ignored, unless another group has the same rate with an effect.

        >>> Rates((0.1, 0.5), (1.0, 5.0)).ignored(Rates((0.1, 1.0), (1.0, 10.0)))
        [0.5]
        """
        found, kept = list[float](), list[float]()
        for rate, own, other in zip(self.rates, self.ratios, loaded.ratios):
            (kept if is_same_setting(own, other) else found).append(rate)
        return [rate for rate in dict.fromkeys(found) if not any(is_same_setting(rate, one) for one in kept)]


def find_ignored(
    session: Session,
    groups: Sequence[Mapping[str, Any]],
    rates: Rates,
    *,
    began_with: Groups | None,
    recorded: Mapping[str, Any],
) -> Ignored:
    """Compare a run that was loaded with its record, and with this program: `groups` and `rates`."""
    loaded, scheduled = optimizer_settings(session.optimizer), session.schedule is not None
    found = ignored_settings(groups, loaded, at_start=began_with, scheduled=scheduled)
    saved = _values(loaded, began_with or ())
    loaded_rates = Rates.of(session)
    if ignored := rates.ignored(loaded_rates):
        found["lr"], saved["lr"] = ignored, [*loaded_rates.rates]
    return Ignored(found, recorded.get("ignored_optimizer_settings") or {}, saved)


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
