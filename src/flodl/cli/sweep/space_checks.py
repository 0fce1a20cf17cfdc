"""Check a sweep against the options of the program, and the `sweep:` of a manifest as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flodl.cli.args.parameter import find_choice
from flodl.cli.args.schema import Schema
from flodl.cli.execution.settings import Setting
from flodl.cli.execution.value_checks import setting_problems
from flodl.cli.manifest.document import plain
from flodl.cli.manifest.loader import Manifest
from flodl.core.errors import SetupError

from .definition import define, written_dimensions
from .search import make_search
from .space import PRESET, Choices, Dimension, Range, dimension_of

_MANY = 1000


def typed_space(space: Sequence[Dimension], schema: Schema) -> tuple[Dimension, ...]:
    """Return a space whose ranges of float options are ranges of floats, also if both ends are integers."""
    return tuple(
        replace(one, low=float(one.low), high=float(one.high))
        if isinstance(one, Range)
        and (option := schema.options.get(one.name))
        and option.type in ("float", "list[float]")
        else one
        for one in space
    )


def _range_problem(dimension: Range, path: str, schema: Schema) -> str:
    """Return why an option cannot have a range of numbers, or ""."""
    option = schema.options.get(dimension.name)
    if option is None or (not option.choices and option.scalar in ("int", "float", "string")):
        return ""
    if option.choices and dimension.is_integer and dimension.high - dimension.low < _MANY:
        numbers = range(int(dimension.low), int(dimension.high) + 1)
        if all(find_choice(str(one), option.scalar, option.choices) is not None for one in numbers):
            return ""
    what = (
        f"has the choices {', '.join(map(str, option.choices))}" if option.choices else f"is a {option.type}"
    )
    return (
        f"{dimension.origin}: {path}: {dimension} is a range of numbers, but --{dimension.name} {what}. List "
        f"the values: {dimension.name}=A,B."
    )


def value_problems(space: Sequence[Dimension], schema: Schema) -> Iterator[str]:
    """Yield a message for every swept option that the program does not have, and for every wrong value."""
    for dimension in space:
        if dimension.name == PRESET:
            continue
        is_given = dimension.origin.startswith("--")
        path = dimension.name if is_given else f"sweep.over.{dimension.name}"
        if isinstance(dimension, Range) and (problem := _range_problem(dimension, path, schema)):
            yield problem
            continue
        values = dimension.values if isinstance(dimension, Choices) else (dimension.low, dimension.high)
        settings = [Setting(dimension.name, value, dimension.origin, path) for value in values]
        yield from dict.fromkeys(setting_problems(schema, settings))


def sweep_problems(manifest: Manifest, schema: Schema | None) -> Iterator[str]:
    """Yield everything that is wrong with `sweep:` of a manifest, whose program has the options of a schema.

    Each message starts with a file relative to the project, and its line.
    """
    written = manifest.document.table("sweep")
    space, num_wrong = [], 0
    for name, node in written_dimensions(written.table("over")):
        try:
            space.append(dimension_of(name, plain(node), node.origin.relative_to(manifest.project)))
        except SetupError as error:
            num_wrong += 1
            yield str(error)
    if schema:
        yield from value_problems(space, schema)
    if num_wrong or not (space or written.value("presets")):
        return
    try:
        found = define(manifest, command=(), tail=(), over=(), presets=(), given={})
        if found["search"] == "grid":
            origin = found.settings["runs"].origin
            make_search("grid", found.space, num_runs=found["runs"], seed=0, runs_origin=origin)
    except SetupError as error:
        yield str(error)
