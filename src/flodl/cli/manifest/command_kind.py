"""Which of the three kinds a command is: a script to run, a folder with a manifest, a preset."""

from __future__ import annotations

from enum import Enum

from flodl.core.errors import ManifestError

from .document import Leaf, Node, Table


class Kind(Enum):
    """What a command does."""

    RUN = "run"
    PATH = "path"
    PRESET = "preset"


_PRESET_SECTIONS = ("ddp", "training", "output")


def kind_of(name: str, node: Node) -> Kind:
    """Say which kind a command is; contradictions are errors.

    It looks at the keys alone, so that a list of commands needs no further check of their values.
    """
    if isinstance(node, Leaf):
        if node.value is None:
            return Kind.PATH
        raise ManifestError(
            f"{node.origin}: command `{name}`: write a map (run, path or a preset), not {node.value!r}."
        )
    has = {
        key for key, value in node.entries.items() if not (isinstance(value, Leaf) and value.value is None)
    }
    problem = ""
    if "run" in has and "path" in has:
        problem = "has both `run:` and `path:`. Keep one of them."
    elif "docker" in has and "run" not in has:
        problem = "has `docker:` without `run:`. Put it beside the `entry:` of the folder's own fdl.yml."
    elif "append" in has and "run" not in has:
        problem = "has `append:` without `run:`. There is nothing to append to."
    elif has & {"run", "path"} and (values := sorted(has & {*_PRESET_SECTIONS, "options"})):
        first = "run" if "run" in has else "path"
        problem = f"has `{values[0]}:` beside `{first}:`, where it would not count. Make a preset of it."
    if problem:
        raise ManifestError(f"{node.origin}: command `{name}`: it {problem}")
    if "run" in has:
        return Kind.RUN
    if "path" in has:
        return Kind.PATH
    options = node.get("options")
    has_options = isinstance(options, Table) and bool(options.entries)
    return Kind.PRESET if has_options or has & set(_PRESET_SECTIONS) else Kind.PATH


def kind_or_none(name: str, node: Node) -> Kind | None:
    """Give the kind, or nothing for a contradiction: what only looks around does not stop at it."""
    try:
        return kind_of(name, node)
    except ManifestError:
        return None
