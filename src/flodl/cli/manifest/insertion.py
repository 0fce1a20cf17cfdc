"""Add a command to a manifest without touching anything else in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from flodl.core.errors import ManifestError


def add_command(path: Path, text: str, name: str) -> str:
    r"""Return the text of a manifest with one more command, which is defined in the folder of that name.

    Comments, quotes, indentation and line ends stay as they are. A command that exists is not changed.

    >>> add_command(Path("fdl.yml"), "commands:\n  run: {run: echo}  # ours\n", "extra")
    'commands:\n  run: {run: echo}  # ours\n  extra:\n'
    """
    before = _load(path, text)
    commands = before.get("commands")
    if commands is None:
        commands = {}
    if isinstance(commands, dict) and name in commands:
        return text
    changed = _insert(text, name)
    try:
        after = yaml.safe_load(changed)
    except yaml.YAMLError:
        after = None
    found = after.get("commands") if isinstance(after, dict) else None
    is_right = isinstance(found, dict) and isinstance(commands, dict) and not found.pop(name, None)
    if not is_right or {**after, "commands": found} != {**before, "commands": commands}:
        raise ManifestError(
            f"{path} has a form that cannot be changed automatically. Add the line '{name}:' to its commands."
        )
    return changed


def _load(path: Path, text: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ManifestError(f"{path} cannot be parsed: {error}. Fix it first.") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ManifestError(f"{path} is not a map with keys such as `commands:`. Fix it first.")
    return found


def _insert(text: str, name: str) -> str:
    """Return the text with the new command; the caller checks the result."""
    newline = "\r\n" if "\r\n" in text else "\n"
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return f"{text}commands:{newline}  {name}:{newline}"
    pairs = {key.value: (key, value) for key, value in root.value}
    if "commands" not in pairs:
        if root.flow_style:
            return _insert_into_flow(text, root, f"{json.dumps('commands')}: {{{json.dumps(name)}: null}}")
        return _insert_line(text, _last_line(root), f"commands:{newline}  {name}:", newline)
    key, value = pairs["commands"]
    if isinstance(value, yaml.MappingNode) and value.flow_style:
        return _insert_into_flow(text, value, f"{json.dumps(name)}: null")
    if isinstance(value, yaml.MappingNode):
        indent = " " * value.value[0][0].start_mark.column
        return _insert_line(text, _last_line(value), f"{indent}{name}:", newline)
    indent = " " * (key.start_mark.column + 2)
    return _insert_line(text, key.end_mark.line, f"{indent}{name}:", newline)


def _insert_into_flow(text: str, node: yaml.MappingNode, entry: str) -> str:
    """Insert a pair at the start of `{…}`, on its own line if the first pair has one."""
    at = node.start_mark.index + 1
    if not node.value:
        return f"{text[:at]}{entry}{text[at:]}"
    first = node.value[0][0].start_mark.index
    return f"{text[:first]}{entry},{text[at:first] or ' '}{text[first:]}"


def _insert_line(text: str, after: int, line: str, newline: str) -> str:
    lines = text.splitlines(keepends=True)
    while after and not lines[after].strip():  # empty lines at the end of a block scalar
        after -= 1
    if lines and not lines[after].endswith("\n"):
        lines[after] += newline
    return "".join([*lines[: after + 1], line + newline, *lines[after + 1 :]])


def _last_line(node: yaml.Node) -> int:
    """Return the number of the last line with content of a node, without comments that follow it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        key, value = node.value[-1]
        return max(int(key.end_mark.line), _last_line(value))
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _last_line(node.value[-1])
    end = node.end_mark
    # A block scalar (`|`) ends at the start of the line after it.
    is_block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    return max(int(end.line) - 1, 0) if is_block and end.column == 0 else int(end.line)
