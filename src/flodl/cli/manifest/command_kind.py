"""The three kinds of command: a script to run, a folder with a manifest, a preset."""

from __future__ import annotations

from enum import Enum

from flodl.core.errors import ManifestError

from .document import Leaf, Node, Table


class Kind(Enum):
    """The kind of a command."""

    RUN = "run"
    PATH = "path"
    PRESET = "preset"


_PRESET_SECTIONS = ("ddp", "training", "output")


def kind_of(name: str, node: Node) -> Kind:
    """Return the kind of a command. Raise if its keys contradict each other.

    Only the keys are inspected, so that commands can be listed without validating their values.
    """
    if isinstance(node, Leaf):
        if node.value is None:
            return Kind.PATH
        raise ManifestError(
            f"{node.origin}: command `{name}`: expected a map (run, path or a preset), got {node.value!r}."
        )
    keys = {
        key for key, value in node.entries.items() if not (isinstance(value, Leaf) and value.value is None)
    }
    problem = ""
    if "run" in keys and "path" in keys:
        problem = "has both `run:` and `path:`. Keep one of them."
    elif "docker" in keys and "run" not in keys:
        problem = "has `docker:` without `run:`. Put it next to the `entry:` in the fdl.yml of the folder."
    elif "append" in keys and "run" not in keys:
        problem = "has `append:` without `run:`. There is nothing to append to."
    elif keys & {"run", "path"} and (extra := sorted(keys & {*_PRESET_SECTIONS, "options"})):
        first = "run" if "run" in keys else "path"
        problem = f"has `{extra[0]}:` next to `{first}:`, where it has no effect. Make it a preset."
    if problem:
        raise ManifestError(f"{node.origin}: command `{name}`: it {problem}")
    if "run" in keys:
        return Kind.RUN
    if "path" in keys:
        return Kind.PATH
    options = node.get("options")
    has_options = isinstance(options, Table) and bool(options.entries)
    return Kind.PRESET if has_options or keys & set(_PRESET_SECTIONS) else Kind.PATH


def kind_or_none(name: str, node: Node) -> Kind | None:
    """Return the kind, or None for a contradiction, for code that only lists commands."""
    try:
        return kind_of(name, node)
    except ManifestError:
        return None
