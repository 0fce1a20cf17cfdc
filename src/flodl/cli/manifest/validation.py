"""Check a manifest against its model: unknown keys and wrong values, each with its file and line."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeVar

import msgspec

from flodl.core.errors import ManifestError
from flodl.core.paths import suggestion

from .document import Table, dotted, plain
from .model import CommandModel, Options
from .render import flow

S = TypeVar("S", bound=msgspec.Struct)
_WORDS_FOR = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list of numbers",
}
_LONGEST_SHOWN = 60
_ELSEWHERE = {"entry", "schema", "compile", "arg-name", "commands"}


def decode(struct: type[S], table: Table, *, where: tuple[str, ...] = ()) -> S:
    """Read a map into a struct; an unknown key or a wrong value is an error with its path, file and line."""
    for problem in problems_in(struct, table, where=where):
        raise ManifestError(problem)
    return msgspec.convert(plain(table), struct, strict=False)


def problems_in(struct: type[msgspec.Struct], table: Table, *, where: tuple[str, ...] = ()) -> list[str]:
    """Give every unknown key of a map, and every value that is not of its type."""
    return [*_unknown_keys(struct, table, where), *_wrong_values(struct, table, where)]


def _wrong_values(struct: type[msgspec.Struct], table: Table, where: tuple[str, ...]) -> Iterator[str]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    for key, node in table.entries.items():
        inner = _struct_in(fields[key].type) if key in fields else None
        if (
            inner
            and isinstance(node, Table)
            and not any(one.required for one in msgspec.structs.fields(inner))
        ):
            yield from _wrong_values(inner, node, (*where, key))
        elif key in fields and isinstance(node, Table) and fields[key].type == Options:
            yield from _wrong_options(node, (*where, key))
        elif key in fields and (words := _wrong_value(struct, table, key, where)):
            yield words


def _wrong_options(options: Table, where: tuple[str, ...]) -> Iterator[str]:
    """Name every option with a value that no command line can have; msgspec names only the map around it."""
    for key, node in options.entries.items():
        try:
            msgspec.convert({key: plain(node)}, Options, strict=False)
        except msgspec.ValidationError:
            problem = _misplaced(plain(node), ["a value", "a list of values"])
            yield f"{node.origin}: {dotted((*where, key))}: {problem}"


def _wrong_value(struct: type[msgspec.Struct], table: Table, key: str, where: tuple[str, ...]) -> str:
    try:
        msgspec.convert({key: table.value(key)}, struct, strict=False)
    except msgspec.ValidationError as error:
        words, _, place = str(error).partition(" - at ")
        if "unknown field" in words:
            return ""  # said already, with the nearest name
        path = tuple(re.findall(r"\.([\w-]+)", place.strip("`")))
        node = table.at(path)
        missing = re.search(r"missing required field `(\w+)`", words)
        problem = f"`{missing[1]}:` is missing." if missing else _misplaced(plain(node), _kinds(struct, path))
        return f"{node.origin}: {dotted((*where, *path))}: {problem}"
    return ""


def _misplaced(value: Any, kinds: list[str]) -> str:
    shown = repr(value) if isinstance(value, str) else flow(value)
    shown = f"{shown[:57]}..." if len(shown) > _LONGEST_SHOWN else shown
    return f"{shown} cannot stand here. Write {' or '.join(kinds)}."


def _kinds(struct: type[msgspec.Struct], path: tuple[str, ...]) -> list[str]:
    """Say what may stand at a place."""
    annotation: Any = struct
    for key in path:
        inner = _struct_in(annotation)
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(inner)} if inner else {}
        annotation = fields.get(key)
    found = []
    for kind in typing.get_args(annotation):
        if typing.get_origin(kind) is Literal:
            found += [repr(word) for word in typing.get_args(kind)]
        elif kind is not type(None):
            found.append(_WORDS_FOR.get(typing.get_origin(kind) or kind, "a map"))
    return found or ["a value, or a list of values"]


def _unknown_keys(struct: type[msgspec.Struct], table: Table, where: tuple[str, ...]) -> Iterator[str]:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    for key, node in table.entries.items():
        if key not in fields:
            hint = _hint(struct, key, fields)
            yield f"{node.origin}: {dotted((*where, key))}: there is no such key. {hint}"
            continue
        inner = _struct_in(fields[key])
        if inner and isinstance(node, Table):
            yield from _unknown_keys(inner, node, (*where, key))


def _hint(struct: type[msgspec.Struct], key: str, known: Iterable[str]) -> str:
    if struct is CommandModel and key in _ELSEWHERE:
        return f"{key!r} belongs into the fdl.yml of the folder that `path:` names."
    if key == "<<":
        return "Merge keys are not supported: use `inherit-from:`, or write the values out."
    return suggestion(key, known, known_as="keys")


def _struct_in(annotation: Any) -> type[msgspec.Struct] | None:
    kinds = typing.get_args(annotation) or (annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)), None)
