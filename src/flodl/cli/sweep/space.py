"""The space of a sweep: for each option, the values or the range to try."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flodl.cli.args.parameter import format_value, split_list
from flodl.cli.numbers import NumberRangeError, parse_float, parse_int
from flodl.core.errors import SetupError

PRESET = "preset"  # the dimension of presets, which is not an option
_INTEGER = re.compile(r"[-+]?\d+\Z")
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*\Z")
_NOT_IN_RANGES = re.compile(r"[,/\\\"]")
_RANGE_KEYS = ("from", "to", "scale", "steps")
MAX_GRID = 10_000


@dataclass(frozen=True)
class Choices:
    """Values to choose from."""

    name: str
    values: tuple[Any, ...]
    origin: str = ""

    def sample(self, rng: random.Random) -> Any:
        return self.values[rng.randrange(len(self.values))]

    def points(self) -> tuple[Any, ...]:
        """The values of a grid."""
        return self.values

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "values": list(self.values)}

    def typed(self) -> str:
        """Return the values as they are typed after `--over NAME=`."""
        return format_value(list(self.values))

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; integers if both are."""

    name: str
    low: float
    high: float
    log: bool = False
    steps: int | None = None
    origin: str = ""

    @property
    def is_integer(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def at(self, fraction: float) -> float:
        """Return the number at a fraction of the range.

        >>> [Range("lr", 1e-4, 1e-2, log=True).at(fraction) for fraction in (0.0, 0.5, 1.0)]
        [0.0001, 0.001, 0.01]
        """
        if fraction in (0.0, 1.0):
            return self.high if fraction else self.low
        if self.log:
            value = math.exp(math.log(self.low) * (1 - fraction) + math.log(self.high) * fraction)
        else:
            value = self.low * (1 - fraction) + self.high * fraction
        return self.rounded(value)

    def fraction_of(self, value: float) -> float:
        """Return the position of a value in the range as a fraction: the inverse of `at`.

        >>> [round(Range("lr", 1e-4, 1e-2, log=True).fraction_of(value), 6) for value in (1e-4, 1e-3, 1e-2)]
        [0.0, 0.5, 1.0]
        """
        low, high = float(self.low), float(self.high)
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return min(max((value - low) / (high - low), 0.0), 1.0)

    def rounded(self, value: float) -> float:
        """Return a number of the range with six digits: enough for a setting, and short to read."""
        short = round(value) if self.is_integer else float(f"{value:.6g}")
        return min(max(short, self.low), self.high)

    def sample(self, rng: random.Random) -> float:
        return self.at(rng.random())

    def points(self) -> tuple[float, ...]:
        """The values of a grid: `steps` of them, evenly spaced on the scale."""
        if self.steps is None:
            raise SetupError(
                f"{self.origin}: a grid needs the number of values of the range {self.name}. "
                f"Write {self.name}={self}:4 for four of them, or --search random."
            )
        if self.steps == 1:
            return (self.low,)
        return tuple(dict.fromkeys(self.at(at / (self.steps - 1)) for at in range(self.steps)))

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "from": self.low,
            "to": self.high,
            "scale": "log" if self.log else "linear",
            "steps": self.steps,
        }

    def typed(self) -> str:
        """Return the range as it is typed after `--over NAME=`."""
        return str(self) if self.steps is None else f"{self}:{self.steps}"

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{':log' if self.log else ''}"


Dimension = Choices | Range


def parse_dimension(text: str) -> Dimension:
    """Parse `--over NAME=VALUES`, where VALUES are a list or a range.

    >>> parse_dimension("hidden=16,64").values
    (16, 64)
    >>> parse_dimension("lr=1e-4..1e-1:log:4").points()
    (0.0001, 0.001, 0.01, 0.1)
    """
    name, equals, values = text.partition("=")
    if not equals and _is_range(text):
        raise SetupError(f"--over {text!r} is a range without an option. Write --over NAME={text}.")
    if not equals or not name.strip() or not values.strip():
        raise SetupError(
            f"--over {text!r} has no values. Write --over lr=1e-4..1e-1:log or --over hidden=16,64."
        )
    return _parse_values(_flag(name), values, "--over")


def _parse_values(name: str, text: str, origin: str) -> Dimension:
    """Parse a range if it consists of two numbers, and a list otherwise: `../a` is a path."""
    if _is_range(text):
        return _parse_range(name, text, origin)
    items = [item for item in text.split(",") if _is_range(item)]
    if items:
        raise SetupError(
            f"{origin}: {name}: {items[0].strip()!r} is a range, which cannot be an item of a list. Write "
            "either one range or a list of values."
        )
    return _checked_choices(Choices(name, tuple(map(parse_value, split_list(text))), origin))


def _is_range(text: str) -> bool:
    """Return whether text is meant as a range: both ends are numbers, or one is and nothing else explains it.

    >>> [_is_range(text) for text in ("1e-4..1e-1:log", "0.1..x", "../a,../b", "2..b/c")]
    [True, True, False, False]
    """
    low, dots, high = text.partition(":")[0].partition("..")
    numbers = [end for end in (low, high) if _NUMBER.match(end)]
    return bool(dots) and (len(numbers) == 2 or (len(numbers) == 1 and not _NOT_IN_RANGES.search(text)))


def _parse_range(name: str, text: str, origin: str) -> Range:
    span, *rest = text.split(":")
    low, _, high = span.partition("..")
    steps = [int(part) for part in rest if _INTEGER.match(part)]
    scales = [part for part in rest if not _INTEGER.match(part)]
    if len(steps) > 1 or len(scales) > 1:
        raise SetupError(
            f"{origin}: {name}: {text!r} is not a range. Write FROM..TO, FROM..TO:log or FROM..TO:log:STEPS."
        )
    if scales and scales[0].strip() not in ("linear", "log"):
        raise SetupError(
            f"{origin}: {name}: {scales[0]!r} after the range {span} is neither a scale (linear or log) nor "
            f"a number of values. Write {span}:log, or {span}:4 for four values."
        )
    return _checked_range(
        name, parse_value(low), parse_value(high), scales[0].strip() if scales else "linear",
        steps[0] if steps else None, origin,
    )  # fmt: skip


def dimension_of(name: str, value: Any, origin: str) -> Dimension:
    """Return the dimension that a manifest writes as a list, or as a map with `from` and `to`."""
    flag = _flag(name)
    if isinstance(value, Mapping):
        unknown = [key for key in value if key not in _RANGE_KEYS]
        if unknown or not {"from", "to"} <= value.keys():
            problem = f"unknown key {unknown[0]!r}" if unknown else "`from:` and `to:` are required"
            raise SetupError(f"{origin}: sweep.over.{name}: {problem}. A range has {', '.join(_RANGE_KEYS)}.")
        return _checked_range(
            flag, value["from"], value["to"], value.get("scale") or "linear", value.get("steps"), origin
        )
    if isinstance(value, str) and _is_range(value):
        return _parse_range(flag, value, origin)
    values = value if isinstance(value, list) else [value]
    return _checked_choices(Choices(flag, tuple(values), origin))


def parse_value(text: str) -> Any:
    """Convert a value of the command line: numbers, true and false, or text.

    >>> [parse_value(text) for text in ("8", "1e-3", "true", "relu")]
    [8, 0.001, True, 'relu']
    """
    text = text.strip()
    try:
        return parse_int(text) if _INTEGER.match(text) else parse_float(text)
    except NumberRangeError as error:
        raise SetupError(f"--over: {text!r} is out of range: {error}.") from None
    except ValueError:
        return {"true": True, "false": False}.get(text, text)


def grid(space: Sequence[Dimension]) -> list[dict[str, Any]]:
    """Return every combination of the values; the last dimension changes fastest.

    >>> grid([Choices("a", (1, 2)), Choices("b", (3, 4))])
    [{'a': 1, 'b': 3}, {'a': 1, 'b': 4}, {'a': 2, 'b': 3}, {'a': 2, 'b': 4}]
    """
    points = [dimension.points() for dimension in space]
    if (size := math.prod(map(len, points))) > MAX_GRID:
        origin = space[0].origin
        raise SetupError(
            f"{origin}: the grid has {size} runs. Use fewer values, or --search random --runs N."
        )
    names = [dimension.name for dimension in space]
    return [dict(zip(names, values)) for values in itertools.product(*points)]


def num_combinations(space: Sequence[Dimension]) -> int | None:
    """Return how many combinations a space has; None if a range of it has fractions.

    >>> num_combinations([Choices("a", (1, 2)), Range("seed", 0, 3)])
    8
    """
    size = 1
    for dimension in space:
        if isinstance(dimension, Choices):
            size *= len(dimension.values)
        elif dimension.is_integer:
            size *= int(dimension.high) - int(dimension.low) + 1
        else:
            return None
    return size


def combinations(space: Sequence[Dimension]) -> Iterator[dict[str, Any]]:
    """Yield every combination of a space of lists and ranges of integers, one at a time."""
    if not space:
        yield {}
        return
    first, *others = space
    values = first.values if isinstance(first, Choices) else range(int(first.low), int(first.high) + 1)
    for value in values:
        for rest in combinations(others):
            yield {first.name: value, **rest}


def _flag(name: str) -> str:
    return name.strip().removeprefix("--").replace("_", "-")


def _checked_choices(choices: Choices) -> Choices:
    where = f"{choices.origin}: {choices.name}"
    if not choices.values:
        raise SetupError(f"{where}: there are no values. Write at least one.")
    for value in choices.values:
        if not isinstance(value, (bool, int, float, str)):
            raise SetupError(f"{where}: {value!r} cannot be swept. Use numbers, text, true or false.")
    if len(set(map(repr, choices.values))) < len(choices.values):
        raise SetupError(f"{where}: a value is listed twice in {choices}. Remove one.")
    return choices


def _checked_range(name: str, low: Any, high: Any, scale: Any, steps: Any, origin: str) -> Range:
    where = f"{origin}: {name}"
    for value in (low, high):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number:
            raise SetupError(f"{where}: {value!r} is not a number. A range needs two numbers, as 1e-4..1e-1.")
    if low >= high:
        raise SetupError(f"{where}: the range {low}..{high} is empty. Write the smaller number first.")
    if scale not in ("linear", "log"):
        raise SetupError(f"{where}: the scale {scale!r} is unknown. Use linear or log.")
    if scale == "log" and low <= 0:
        raise SetupError(f"{where}: a log scale starts above 0, but the range starts at {low}.")
    if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
        raise SetupError(f"{where}: {steps!r} values are not possible. Use an integer of at least 1.")
    return Range(name, low, high, scale == "log", steps, origin)
