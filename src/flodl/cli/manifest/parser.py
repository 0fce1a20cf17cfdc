"""Reading YAML (and so JSON) with lines, by the rules of YAML 1.2: `yes` is a string, `1e-4` a number."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import yaml  # type: ignore[import-untyped]

from flodl.core.errors import ManifestError

from .document import Leaf, Node, Origin, Table, kind_in_words

MOST_NODES = 100_000  # aliases of aliases can describe more than any memory holds
_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The C parser, where PyYAML has it, with the scalars of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  PyYAML's way


for _name, _pattern, _first in (
    ("null", re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern.pattern})\Z"), _first)


def read_document(path: Path) -> Table:
    """Read a manifest; whatever is wrong with it is an error with the file and the line."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error.strerror}.") from None
    return parse_document(content, path)


def parse_document(content: bytes | str, path: Path) -> Table:
    """Read the text of a manifest.

    >>> table = parse_document("lr: 1e-4\\nname: yes", Path("fdl.yml"))
    >>> table.value("lr"), table.value("name"), table.at(("name",)).origin.line
    (0.0001, 'yes', 2)
    """
    try:
        loader = _Loader(content)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
        reader = _Reader(path)
        found = Table(MappingProxyType({}), Origin(path, 1)) if node is None else reader.convert(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # What is missing at the end is reported behind it, on a line that no editor shows.
        line = f":{min(mark.line + 1, len(content.splitlines()))}" if mark else ""
        raise ManifestError(f"{path}{line}: {_explained(error, content)}") from None
    except yaml.reader.ReaderError as error:
        raise ManifestError(f"{path}{_line_of(content, error)}: {_unreadable(error)}") from None
    except yaml.YAMLError as error:
        words = " ".join(str(error).split())
        raise ManifestError(f"{path}: {words}. Save it as UTF-8 text.") from None
    except RecursionError:
        line = f":{_deepest_line(content)}"
        raise ManifestError(f"{path}{line}: it is nested too deeply to be a manifest.") from None
    except UnicodeError as error:
        raise ManifestError(f"{path}: {error.reason}. Save it as UTF-8 text.") from None  # type: ignore[attr-defined]
    if isinstance(found, Leaf):
        if found.value is None:
            return Table(MappingProxyType({}), found.origin)
        kind = kind_in_words(found.value)
        raise ManifestError(f"{path}:{found.origin.line}: a manifest is a map, and this is {kind}.")
    return found


def _explained(error: Any, content: bytes | str) -> str:
    """Say what a parser found; of a tab it only says that no token starts with it."""
    text = content.decode(errors="replace") if isinstance(content, bytes) else content
    mark, lines = error.problem_mark, text.splitlines()
    line = lines[mark.line] if mark and mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "a tab stands at the beginning of the line. Indent with spaces."
    words = ", ".join(filter(None, (error.context, error.problem)))
    return f"{words}. Mend the YAML there."


def _deepest_line(content: bytes | str) -> int:
    """Give the line that is nested most; its events come one by one, without the depth that was too much."""
    depth, deepest, line = 0, 0, 1
    for event in yaml.parse(content, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > deepest:
            deepest, line = depth, event.start_mark.line + 1
    return line


def _line_of(content: bytes | str, error: Any) -> str:
    """Give the line of what cannot be read as text, from the place that the parser gives."""
    data = content.encode(errors="replace") if isinstance(content, str) else content
    position = error.position if isinstance(error.position, int) else 0
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as mistake:
        position = mistake.start
    line = data[:position].count(b"\n") + 1
    return f":{line}"


def _unreadable(error: Any) -> str:
    if "control characters" in error.reason or error.encoding == "unicode":
        return "an invisible character stands there, which YAML does not allow. Take it out."
    return f"this is no UTF-8 text ({error.reason}). Save it as UTF-8 text."


class _Reader:
    """Turn the nodes of PyYAML into a document; counts them, and notices an alias inside itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.inside: set[int] = set()

    def convert(self, node: Any, key: Any = None) -> Node:
        # An alias is the node that it names; it stands at its key, and what it names is further up.
        elsewhere = key is not None and node.start_mark.index < key.start_mark.index
        origin = Origin(self.path, (key if elsewhere else node).start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return Table(MappingProxyType(self._entries(node)), origin)
        return Leaf(self._value(node), origin)

    def _entries(self, node: Any) -> dict[str, Node]:
        self._enter(node)
        entries: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if key in entries:
                self._fail(key_node, f"{key!r} stands twice in one map. Keep one of them")
            entries[key] = self.convert(value_node, key_node)
        self.inside.discard(id(node))
        return entries

    def _key(self, node: Any) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self._fail(node, "a key must be a word, not a map or a list")
        return self._without_nul(node)

    def _value(self, node: Any) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.MappingNode):  # inside a list
            return {key: _plain(value) for key, value in self._entries(node).items()}
        self._enter(node)
        values = [self._value(item) for item in node.value]
        self.inside.discard(id(node))
        return values

    def _enter(self, node: Any) -> None:
        if node.tag.removeprefix(_TAG) not in ("map", "seq"):
            self._refuse_tag(node)
        if id(node) in self.inside:
            self._fail(node, "an alias stands inside what it names")
        self.inside.add(id(node))
        self.count += 1 + len(node.value)
        if self.count > MOST_NODES:
            self._fail(node, f"it describes more than {MOST_NODES} values")

    def _scalar(self, node: Any) -> Any:
        text, kind = node.value, node.tag.removeprefix(_TAG)
        try:
            if kind == "str":
                return self._without_nul(node)
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
            if kind == "float":
                return math.nan if text.lower() == ".nan" else float(text.lower().replace(".inf", "inf"))
        except (ValueError, KeyError):
            return self._fail(node, f"{text[:40]!r} is no {kind}")
        return self._refuse_tag(node)

    def _without_nul(self, node: Any) -> str:
        """Give the text of a scalar; no path and no word of a command line may have a NUL in it."""
        if "\0" in node.value:
            self._fail(node, f"a NUL character stands in {node.value[:40]!r}. Take it out")
        return str(node.value)

    def _refuse_tag(self, node: Any) -> NoReturn:
        self._fail(node, f"the tag {node.tag!r} is not known here. Leave it out")

    def _fail(self, node: Any, words: str) -> NoReturn:
        raise ManifestError(f"{self.path}:{node.start_mark.line + 1}: {words}.")


def _plain(node: Node) -> Any:
    if isinstance(node, Leaf):
        return node.value
    return {key: _plain(value) for key, value in node.entries.items()}
