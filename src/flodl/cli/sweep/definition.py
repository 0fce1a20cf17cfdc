"""The definition of a sweep: from the manifest and the command line, and as a file in its folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flodl.cli.manifest.document import Leaf, Node, Table, plain
from flodl.cli.manifest.loader import Manifest
from flodl.core.errors import SetupError
from flodl.core.files import read_limited, write_atomic
from flodl.core.paths import suggestion

from .search import SEARCHES
from .space import PRESET, Choices, Dimension, Range, dimension_of, parse_dimension

FILE = "sweep.json"
_VERSION = 1
_MAX_BYTES = 1 << 22
# The definition may change in these without making it another sweep.
_CHANGEABLE = ("version", "runs", "metric", "mode")


@dataclass(frozen=True)
class Setting:
    """One setting of a sweep, and where it comes from."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Definition:
    """What a sweep runs: the words of the command, the space, and the settings of the search."""

    command: tuple[str, ...]
    tail: tuple[str, ...]
    space: tuple[Dimension, ...]
    settings: Mapping[str, Setting]  # search, runs, metric, mode, seed

    def __getitem__(self, name: str) -> Any:
        return self.settings[name].value

    @property
    def has_presets(self) -> bool:
        return any(dimension.name == PRESET for dimension in self.space)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "command": list(self.command),
            "words": list(self.tail),
            "over": [dimension.to_json() for dimension in self.space],
            **{name: setting.value for name, setting in self.settings.items()},
        }


def define(
    manifest: Manifest,
    *,
    command: Sequence[str],
    tail: Sequence[str],
    over: Sequence[str],
    presets: Sequence[str],
    given: Mapping[str, Any],
) -> Definition:
    """Combine `sweep:` of the manifest with the command line, which comes last and takes precedence."""
    written = manifest.document.table("sweep")
    found: dict[str, Dimension] = {}
    listed = written.get("presets")
    if presets:
        found[PRESET] = Choices(PRESET, tuple(presets), "--presets")
    elif isinstance(listed, Leaf) and listed.value:
        found[PRESET] = Choices(PRESET, tuple(listed.value), listed.origin.relative_to(manifest.project))
    for name, node in written_dimensions(written.table("over")):
        dimension = dimension_of(name, plain(node), node.origin.relative_to(manifest.project))
        if dimension.name in found and dimension.name != PRESET:
            raise SetupError(
                f"{dimension.origin}: sweep.over.{name}: {found[dimension.name].origin} sweeps over the same "
                f"option, --{dimension.name}. Keep one of them."
            )
        found[dimension.name] = dimension
    found |= _given_dimensions(over)
    _check_presets(manifest, found.get(PRESET))
    if not found:
        if after := next((word for word in tail if word.partition("=")[0] in ("--over", "--presets")), None):
            raise SetupError(
                f"{after.partition('=')[0]} is an option of fdl sweep: put it before the command."
            )
        raise SetupError(
            "there is nothing to sweep over. Write --over lr=1e-4..1e-1:log, --presets A,B, or `sweep:` in "
            f"{manifest.path}."
        )
    space = tuple(found.values())
    return Definition(tuple(command), tuple(tail), space, _settings(manifest, written, space, given))


def _given_dimensions(over: Sequence[str]) -> dict[str, Dimension]:
    """Return the dimensions of all --over by name. Each option may be given once."""
    found: dict[str, tuple[str, Dimension]] = {}
    for text in over:
        dimension = parse_dimension(text)
        if dimension.name in found:
            raise SetupError(
                f"--over {text!r}: --over {found[dimension.name][0]!r} already sweeps over "
                f"--{dimension.name}. Write all of its values in one list, as {dimension.name}=A,B,C."
            )
        found[dimension.name] = text, dimension
    return {name: dimension for name, (_text, dimension) in found.items()}


def written_dimensions(table: Table, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Yield the options to sweep over by dotted name. A map is a range, or contains nested options."""
    for key, node in table.entries.items():
        if isinstance(node, Table) and any(
            isinstance(one, Table) or isinstance(one.value, list) for one in node.entries.values()
        ):
            yield from written_dimensions(node, f"{prefix}{key}.")
        else:
            yield prefix + key, node


def _check_presets(manifest: Manifest, presets: Dimension | None) -> None:
    for name in presets.points() if presets is not None else ():
        if name not in manifest.commands.entries:
            hint = suggestion(str(name), manifest.commands.entries, known_as="presets")
            raise SetupError(f"{presets and presets.origin}: {manifest.path} has no preset {name!r}. {hint}")


def _settings(
    manifest: Manifest, written: Table, space: Sequence[Dimension], given: Mapping[str, Any]
) -> dict[str, Setting]:
    is_open = any(isinstance(dimension, Range) and dimension.steps is None for dimension in space)
    found = {
        "search": Setting("random" if is_open else "grid", "default"),
        "runs": Setting(None, "default"),
        "metric": Setting(None, "default"),
        "mode": Setting(None, "default"),
        "seed": Setting(0, "default"),
    }
    for name in found:
        node = written.get(name)
        if node is not None and plain(node) is not None:
            found[name] = Setting(plain(node), node.origin.relative_to(manifest.project))
        if given.get(name) is not None:
            found[name] = Setting(given[name], f"--{name}")
    assert found["search"].value in SEARCHES
    return found


def check(folder: Path, definition: Definition) -> None:
    """Raise if a folder holds a different sweep, or something else."""
    old, new = load(folder), _content(definition)
    if old is None:
        if folder.is_dir() and any(folder.iterdir()):
            raise SetupError(
                f"{folder} is not empty and holds no sweep. Pass an empty or new folder as --out."
            )
        return
    different = [name for name in new if name not in _CHANGEABLE and old.get(name) != new[name]]
    if different:
        what, was, now = _difference(different[0], old, new)
        raise SetupError(
            f"{folder} holds a different sweep: its {what} was {was}, not {now}. Pass a new folder as --out, "
            "or resume that sweep with its settings."
        )


def _difference(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return what differs between two sweeps, and both values."""
    if name in ("command", "words"):
        was, now = (shlex.join([*one.get("command", ()), *one.get("words", ())]) for one in (old, new))
        return "command", was or "that of the manifest", now or "that of the manifest"
    was, now = _shown(old.get(name)), _shown(new[name])
    if name == "over" and _typed(old.get(name)) != _typed(new[name]):
        was, now = _typed(old.get(name)), _typed(new[name])
    return f"--{name}", was, now


def _typed(over: Any) -> str:
    """Return the space of a sweep as it is typed after --over.

    >>> _typed([{"name": "lr", "values": [0.1, 0.01]}, {"name": "hidden", "from": 16, "to": 64}])
    'lr=0.1,0.01 hidden=16..64'
    """
    try:
        spaces = [(one["name"], {key: one[key] for key in one if key != "name"}) for one in over]
        dimensions = [dimension_of(name, space.get("values", space), FILE) for name, space in spaces]
    except (TypeError, KeyError, AttributeError, SetupError):  # a file of another version
        return _shown(over)
    return " ".join(f"{one.name}={one.typed()}" for one in dimensions)


def save(folder: Path, definition: Definition) -> None:
    """Write the definition into the folder of the sweep, after `check`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / FILE, json.dumps(_content(definition), indent=2) + "\n")


def _content(definition: Definition) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(definition.to_json()))
    return content


def load(folder: Path) -> dict[str, Any] | None:
    """Return the definition in a folder, or None if it holds no sweep."""
    path = folder / FILE
    try:
        found = json.loads(read_limited(path, max_bytes=_MAX_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise SetupError(f"{path} cannot be read. Pass a new folder as --out.") from None
    if not isinstance(found, dict) or found.get("version") != _VERSION:
        raise SetupError(f"{path} is not the definition of a sweep. Pass a new folder as --out.")
    return found


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}…"
