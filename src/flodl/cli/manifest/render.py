"""Print a document as YAML with the origin of every value, or as JSON data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .document import Leaf, Node, Table, dotted, leaves

_MAX_LIST_WIDTH = 80
_MIN_COLUMN = 12
_NUMBER = re.compile(
    r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?\Z|0[xo][0-9a-fA-F]+\Z|[-+]?\.(inf|nan)\Z", re.I
)
_RESERVED_WORDS = {"true", "false", "null", "yes", "no", "~"}
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}
Line = tuple[str, str]  # text, and the origin that is its comment


class _Verbatim(str):
    """The text of a number, which is not quoted."""


def as_written(value: Any, written: str | tuple[str | None, ...] | None) -> Any:
    """Return a value that `flow` shows with the text of a number, or of those in a list.

    >>> flow(as_written(7, "007")), flow(as_written([1.1, "a"], ("1.10", None)))
    ('007', '[1.10, a]')
    """
    if isinstance(written, tuple):
        return [item if text is None else _Verbatim(text) for item, text in zip(value, written)]
    return value if written is None else _Verbatim(written)


def origins_of(document: Table, folder: Path) -> dict[str, dict[str, Any]]:
    """Return every leaf as `{path: {"value": …, "origin": "fdl.yml:12"}}`.

    `written` is added for a number that is passed with a different text.
    """
    found: dict[str, dict[str, Any]] = {}
    for path, leaf in leaves(document):
        found[dotted(path)] = {"value": leaf.value, "origin": leaf.origin.relative_to(folder)}
        text = flow(as_written(leaf.value, leaf.written))
        if text != flow(leaf.value):
            found[dotted(path)]["written"] = text
    return found


def as_yaml(document: Table, folder: Path) -> str:
    """Return a document as YAML, with the origins as aligned comments."""
    lines = list(_table_lines(document, 0, folder))
    column = max([_MIN_COLUMN, *(len(text) for text, origin in lines if origin)]) + 2
    return "".join(f"{text:<{column}}# {origin}\n" if origin else f"{text}\n" for text, origin in lines)


def _table_lines(table: Table, indent: int, folder: Path) -> Iterator[Line]:
    for key, node in table.entries.items():
        yield from _entry_lines(" " * indent + f"{scalar(key)}:", node, indent, folder)


def _entry_lines(head: str, node: Node, indent: int, folder: Path) -> Iterator[Line]:
    if isinstance(node, Table) and node.entries:
        yield head, ""
        yield from _table_lines(node, indent + 2, folder)
        return
    origin = node.origin.relative_to(folder)
    value = as_written(node.value, node.written) if isinstance(node, Leaf) else {}
    if isinstance(value, list) and value:
        inline = flow(value)
        plain_items = not any(isinstance(item, (list, dict)) for item in value)
        if plain_items and len(head) + 1 + len(inline) <= _MAX_LIST_WIDTH:
            yield f"{head} {inline}", origin
            return
        yield head, origin
        yield from ((line, "") for line in _list_lines(value, indent + 2))
        return
    yield f"{head} {flow(value)}", origin


def _list_lines(values: list[Any], indent: int) -> Iterator[str]:
    dash = " " * indent + "- "
    for value in values:
        if isinstance(value, dict) and value:
            rows = [f"{scalar(key)}: {flow(inner)}" for key, inner in value.items()]
            yield dash + rows[0]
            yield from (" " * (indent + 2) + row for row in rows[1:])
        else:
            yield dash + flow(value)


def flow(value: Any) -> str:
    """Format a value on one line, in YAML flow style.

    >>> flow({"a": [1, None, "yes"]})
    '{a: [1, null, "yes"]}'
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_item(key)}: {_item(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_item, value))}]"
    return scalar(value)


def _item(value: Any) -> str:
    """Format an item of a list or map on one line, where a comma or a bracket would end it."""
    if isinstance(value, str) and any(char in value for char in ",[]{}"):
        return f'"{_escaped(value)}"'
    return flow(value)


def scalar(value: Any) -> str:
    """Format a scalar. A string is quoted only if it would be parsed as something else."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _float(value)
    if not isinstance(value, str) or isinstance(value, _Verbatim):
        return str(value)
    return f'"{_escaped(value)}"' if _is_ambiguous(value) else value


def _float(value: float) -> str:
    text = repr(value)
    return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(text, text)


def _is_ambiguous(text: str) -> bool:
    return (
        not text
        or any(char in text for char in ':#"')
        or text != text.strip()
        or text[0] in "!&*>|%@`[]{},-?'"
        or text.lower() in _RESERVED_WORDS
        or not text.isprintable()
        or text in ("---", "...", "=", "<<")
        or bool(_NUMBER.match(text))
    )


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(char) or (char if char.isprintable() else _escape(char)) for char in text)


def _escape(char: str) -> str:
    number = ord(char)
    return (
        f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
    )
