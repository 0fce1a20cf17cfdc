"""Check a sweep against the options of the program, and the `sweep:` of a manifest as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flodl.cli.args.schema import Schema
from flodl.cli.execution.settings import Setting
from flodl.cli.execution.value_checks import setting_problems
from flodl.cli.manifest.document import plain
from flodl.cli.manifest.loader import Manifest
from flodl.core.errors import SetupError

from .definition import define, written_dimensions
from .search import make_search
from .space import PRESET, Choices, Dimension, dimension_of


def value_problems(space: Sequence[Dimension], schema: Schema) -> Iterator[str]:
    """Yield a message for every swept option that the program does not have, and for every wrong value."""
    for dimension in space:
        if dimension.name == PRESET:
            continue
        is_given = dimension.origin.startswith("--")
        path = dimension.name if is_given else f"sweep.over.{dimension.name}"
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
