"""Parse YAML 1.2 (and so JSON) with line numbers: `yes` is a string, `1e-4` a number."""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import yaml  # type: ignore[import-untyped]

from flodl.cli.numbers import NumberRangeError, parse_float, parse_int
from flodl.core.errors import ManifestError
from flodl.core.files import read_limited

from .document import Leaf, Node, Origin, Table, describe_type, plain

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
# Aliases can expand to more than fits in memory.
MAX_NODES = 100_000
MAX_TEXT = 4 * MAX_BYTES
_MAX_KEY = 1000
_TOO_DEEP = f"the nesting is too deep for a manifest: more than {MAX_DEPTH} levels"
_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's C parser if available, with the scalar types of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  required by PyYAML


for _name, _pattern, _first in (
    ("null", re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern.pattern})\Z"), _first)


def read_document(path: Path) -> Table:
    """Read and parse a manifest. Errors name the file and the line."""
    try:
        content = read_limited(path, max_bytes=MAX_BYTES)
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path} cannot be read: {getattr(error, 'strerror', error)}.") from None
    return parse_document(content, path)


def parse_document(content: bytes | str, path: Path) -> Table:
    """Parse the text of a manifest.

    >>> table = parse_document("lr: 1e-4\\nname: yes", Path("fdl.yml"))
    >>> table.value("lr"), table.value("name"), table.at(("name",)).origin.line
    (0.0001, 'yes', 2)
    """
    try:
        _check_depth(content, path)
        loader = _Loader(content)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
        empty = Table(MappingProxyType({}), Origin(path, 1))
        document = empty if node is None else _Converter(path).convert(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # An unexpected end is reported one line after the last one.
        line = f":{min(mark.line + 1, len(content.splitlines()))}" if mark else ""
        raise ManifestError(f"{path}{line}: {_describe_error(error, content)}") from None
    except yaml.reader.ReaderError as error:
        raise ManifestError(f"{path}{_line_of(content, error)}: {_describe_encoding_error(error)}") from None
    except yaml.YAMLError as error:
        message = " ".join(str(error).split())
        raise ManifestError(f"{path}: {message}. Save it as UTF-8 text.") from None
    except UnicodeError as error:
        raise ManifestError(f"{path}: {error.reason}. Save it as UTF-8 text.") from None  # type: ignore[attr-defined]
    if isinstance(document, Leaf):
        if document.value is None:
            return Table(MappingProxyType({}), document.origin)
        found = describe_type(document.value)
        raise ManifestError(f"{path}:{document.origin.line}: a manifest must be a map, not {found}.")
    return document


def _describe_error(error: Any, content: bytes | str) -> str:
    """Describe a syntax error. PyYAML's own message for a tab does not mention the tab."""
    text = content.decode(errors="replace") if isinstance(content, bytes) else content
    mark, lines = error.problem_mark, text.splitlines()
    line = lines[mark.line] if mark and mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "the line is indented with a tab. Use spaces."
    message = ", ".join(filter(None, (error.context, error.problem)))
    return f"{message}. Fix the YAML there."


def _check_depth(content: bytes | str, path: Path) -> None:
    """Raise if the nesting is too deep: PyYAML would crash the process. Reading events needs no recursion."""
    depth = 0
    for event in yaml.parse(content, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ManifestError(f"{path}:{event.start_mark.line + 1}: {_TOO_DEEP}.")


def _line_of(content: bytes | str, error: Any) -> str:
    """Return the line of a decoding error."""
    data = content.encode(errors="replace") if isinstance(content, str) else content
    position = error.position if isinstance(error.position, int) else 0
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as decode_error:
        position = decode_error.start
    line = data[:position].count(b"\n") + 1
    return f":{line}"


def _describe_encoding_error(error: Any) -> str:
    if "control characters" in error.reason or error.encoding == "unicode":
        return "there is an invisible character that YAML does not allow. Remove it."
    return f"the file is not valid UTF-8 ({error.reason}). Save it as UTF-8 text."


def _written(node: Any) -> str | tuple[str | None, ...] | None:
    """Return the text of a number, or the texts of the numbers in a list."""
    if isinstance(node, yaml.SequenceNode):
        return tuple(_number_text(item) for item in node.value)
    return _number_text(node)


def _number_text(node: Any) -> str | None:
    is_number = isinstance(node, yaml.ScalarNode) and node.tag.removeprefix(_TAG) in ("int", "float")
    return str(node.value) if is_number else None


class _Converter:
    """Converts PyYAML nodes to a document. It limits their number and detects recursive aliases."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.num_chars = 0
        self.open_nodes: set[int] = set()

    def convert(self, node: Any, key: Any = None) -> Node:
        # The line of the key: a map may start further down, and an alias refers to a node further up.
        origin = Origin(self.path, (node if key is None else key).start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return Table(MappingProxyType(self._entries(node)), origin)
        return Leaf(self._value(node), origin, _written(node))

    def _entries(self, node: Any) -> dict[str, Node]:
        self._enter(node)
        entries: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if key in entries:
                self._fail(key_node, f"the key {key[:40]!r} appears twice in one map. Keep one of them")
            entries[key] = self.convert(value_node, key_node)
        self.open_nodes.discard(id(node))
        return entries

    def _key(self, node: Any) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self._fail(node, "a key must be a scalar, not a map or a list")
        if len(node.value) > _MAX_KEY:
            self._fail(node, f"the key {node.value[:40]!r}… has more than {_MAX_KEY} characters")
        return self._text(node)

    def _value(self, node: Any) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.MappingNode):  # inside a list
            return {key: plain(value) for key, value in self._entries(node).items()}
        self._enter(node)
        values = [self._value(item) for item in node.value]
        self.open_nodes.discard(id(node))
        return values

    def _enter(self, node: Any) -> None:
        if node.tag.removeprefix(_TAG) not in ("map", "seq"):
            self._refuse_tag(node)
        if id(node) in self.open_nodes:
            self._fail(node, "an alias refers to a node that contains it")
        self.open_nodes.add(id(node))
        if len(self.open_nodes) > MAX_DEPTH:  # through aliases
            self._fail(node, _TOO_DEEP)
        self.count += 1 + len(node.value)
        if self.count > MAX_NODES:
            self._fail(node, f"with its aliases, the file contains more than {MAX_NODES} values")

    def _scalar(self, node: Any) -> Any:
        text, kind = node.value, node.tag.removeprefix(_TAG)
        try:
            if kind == "str":
                return self._text(node)
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                return parse_int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
            if kind == "float":
                return parse_float(text)
        except NumberRangeError as error:
            self._fail(node, f"{text[:40]!r} is not a valid {kind}: {error}. Put it in quotes if it is text")
        except (ValueError, KeyError):
            self._fail(node, f"{text[:40]!r} is not a valid {kind}")
        return self._refuse_tag(node)

    def _text(self, node: Any) -> str:
        """Return the text of a scalar. NUL is rejected because paths and arguments cannot contain it."""
        self.num_chars += len(node.value)
        if self.num_chars > MAX_TEXT:
            self._fail(node, f"with its aliases, the text of the file has more than {MAX_TEXT} characters")
        if "\0" in node.value:
            self._fail(node, f"{node.value[:40]!r} contains a NUL character. Remove it")
        return str(node.value)

    def _refuse_tag(self, node: Any) -> NoReturn:
        self._fail(node, f"the tag {node.tag!r} is not supported. Remove it")

    def _fail(self, node: Any, message: str) -> NoReturn:
        raise ManifestError(f"{self.path}:{node.start_mark.line + 1}: {message}.")
