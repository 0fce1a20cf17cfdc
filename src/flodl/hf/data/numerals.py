"""Labels whose names are numerals, such as stars from 1 to 5: an integer may be a name or an id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flodl.core import HFError

from ..losses import IGNORED


def misleading_numerals(names: Sequence[str]) -> dict[int, str]:
    """Return the names that are integers but not their own ids, by these integers.

    >>> misleading_numerals(["1", "2"]), misleading_numerals(["0", "1"]), misleading_numerals(["no", "yes"])
    ({1: '1', 2: '2'}, {}, {})
    """
    values = [_integer(name) for name in names]
    return {
        value: name
        for index, (value, name) in enumerate(zip(values, names))
        if value is not None and value not in (index, IGNORED)
    }


def two_readings(what: str, value: int, names: Sequence[str], numerals: Mapping[int, str]) -> HFError:
    """Return the error of an integer that is the name of a label, but not its id."""
    name = numerals[value]
    found = f"the {what} is {value} (int). The label {name!r} has the id {list(names).index(name)}"
    advice = f"Pass names as strings, such as {name!r}"
    if not 0 <= value < len(names):
        return HFError(f"{found}, and there is no id {value}. {advice}.")
    return HFError(
        f"{found}, and the id {value} is the label {names[value]!r}: it is not clear which one is meant. "
        f"{advice}. If it is an id, pass the name that it stands for: model.config.labels[{value}]."
    )


def _integer(name: str) -> int | None:
    try:
        value = float(name)
    except ValueError:
        return None
    return int(value) if value.is_integer() else None
