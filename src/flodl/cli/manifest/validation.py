"""Check a manifest against its model: unknown keys and wrong values, each with its file and line."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from flodl.core.errors import ManifestError
from flodl.core.paths import did_you_mean, nearest, suggestion

from .document import Table, dotted, plain
from .model import CommandModel, ManifestModel, Options, Training
from .render import flow

S = TypeVar("S", bound=msgspec.Struct)
_TYPE_DESCRIPTIONS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list of numbers",
}
_MAX_SHOWN = 60
_NUMBER = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?\Z")
_MANIFEST_ONLY = {"entry", "schema", "compile", "arg-name", "commands"}
_COMMAND_ONLY = {"run", "append", "path", "options"}
_MERGE_KEY = "Merge keys are not supported: use `inherit-from:`, or write the values out."


def decode(struct: type[S], table: Table, *, where: tuple[str, ...] = ()) -> S:
    """Convert a map to a struct. Raise for the first of the `problems_in` it."""
    for problem in _problems(struct, table, where):
        raise ManifestError(problem)
    return msgspec.convert(_without_nested(plain(table)), struct)


def _without_nested(values: dict[str, Any]) -> dict[str, Any]:
    """Drop the maps in `training:`, which are options of the program."""
    training = values.get("training")
    if not isinstance(training, dict):
        return values
    return {**values, "training": {key: one for key, one in training.items() if not isinstance(one, dict)}}


def problems_in(struct: type[msgspec.Struct], table: Table, *, where: tuple[str, ...] = ()) -> list[str]:
    """Return a message for every unknown key and every value of the wrong type."""
    return list(_problems(struct, table, where))


def _problems(struct: type[msgspec.Struct], table: Table, where: tuple[str, ...]) -> Iterator[str]:
    yield from _unknown_keys(struct, table, where)
    yield from _wrong_values(struct, table, where)


def _wrong_values(struct: type[msgspec.Struct], table: Table, where: tuple[str, ...]) -> Iterator[str]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    for key, node in table.entries.items():
        inner = _struct_in(fields[key].type) if key in fields else None
        if (
            inner
            and isinstance(node, Table)
            and not any(field.required for field in msgspec.structs.fields(inner))
        ):
            yield from _wrong_values(inner, node, (*where, key))
        elif isinstance(node, Table) and _has_options(struct, key, fields):
            yield from _wrong_options(node, (*where, key))
        elif key in fields and (problem := _wrong_value(struct, table, key, where)):
            yield problem


def _has_options(struct: type[msgspec.Struct], key: str, fields: Mapping[str, Any]) -> bool:
    """Return whether a map contains options of the program: `options:`, or a map in `training:`."""
    return fields[key].type == Options if key in fields else struct is Training


def _wrong_options(options: Table, where: tuple[str, ...]) -> Iterator[str]:
    """Report every option with an unsupported value. msgspec reports only the map that contains it."""
    for key, node in options.entries.items():
        if isinstance(node, Table):  # a dict, or nested options
            yield from _wrong_options(node, (*where, key))
            continue
        try:
            msgspec.convert({key: plain(node)}, Options, strict=False)
        except msgspec.ValidationError:
            problem = _describe_wrong(plain(node), ["a value", "a list of values"])
            yield f"{node.origin}: {dotted((*where, key))}: {problem}"


def _wrong_value(struct: type[msgspec.Struct], table: Table, key: str, where: tuple[str, ...]) -> str:
    try:
        msgspec.convert({key: table.value(key)}, struct)
    except msgspec.ValidationError as error:
        message, _, location = str(error).partition(" - at ")
        if "unknown field" in message:
            return ""  # reported by _unknown_keys
        path = tuple(re.findall(r"\.([\w-]+)", location.strip("`")))
        node = table.at(path)
        missing = re.search(r"missing required field `(\w+)`", message)
        problem = (
            f"`{missing[1]}:` is missing."
            if missing
            else _describe_wrong(plain(node), _expected_types(struct, path))
        )
        return f"{node.origin}: {dotted((*where, *path))}: {problem}"
    return ""


def _describe_wrong(value: Any, expected: list[str]) -> str:
    shown = repr(value) if isinstance(value, str) else flow(value)
    shown = f"{shown[:57]}..." if len(shown) > _MAX_SHOWN else shown
    hint = ""
    if isinstance(value, str) and _is_quoted(value, expected):
        hint = "Remove the quotes."
    elif isinstance(value, str):
        words = [word[1:-1] for word in expected if word.startswith("'")]
        hint = did_you_mean(nearest(value, words))
    return f"{shown} is not allowed here. Expected {' or '.join(expected)}. {hint}".rstrip()


def _is_quoted(text: str, expected: list[str]) -> bool:
    """Return whether a text would be a valid number, or true or false, without its quotes."""
    if "true or false" in expected and text in ("true", "false"):
        return True
    takes_number = any(kind.startswith(("an integer", "a number")) for kind in expected)
    return takes_number and _NUMBER.match(text) is not None


def _expected_types(struct: type[msgspec.Struct], path: tuple[str, ...]) -> list[str]:
    """Describe the types that are allowed at a path."""
    annotation: Any = struct
    for key in path:
        inner = _struct_in(annotation)
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(inner)} if inner else {}
        annotation = fields.get(key)
    found = []
    for kind in typing.get_args(annotation):
        if typing.get_origin(kind) is Literal:
            found += [repr(word) for word in typing.get_args(kind)]
        elif typing.get_origin(kind) is Annotated:
            base, bound = typing.get_args(kind)
            found.append(f"{_TYPE_DESCRIPTIONS.get(base, 'a number')} of at least {bound.ge}")
        elif kind is not type(None):
            found.append(_TYPE_DESCRIPTIONS.get(typing.get_origin(kind) or kind, "a map"))
    return found or ["a value, or a list of values"]


def _unknown_keys(struct: type[msgspec.Struct], table: Table, where: tuple[str, ...]) -> Iterator[str]:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    for key, node in table.entries.items():
        if key not in fields and key != "<<" and struct is Training and isinstance(node, Table):
            # Nested options, such as `optimizer: {lr: 0.1}`.
            yield from _merge_keys(node, (*where, key))
            continue
        if key not in fields:
            hint = _hint(struct, key, fields)
            yield f"{node.origin}: {dotted((*where, key))}: unknown key. {hint}"
            continue
        inner = _struct_in(fields[key])
        if inner and isinstance(node, Table):
            yield from _unknown_keys(inner, node, (*where, key))


def _merge_keys(table: Table, where: tuple[str, ...]) -> Iterator[str]:
    for key, node in table.entries.items():
        if key == "<<":
            yield f"{node.origin}: {dotted((*where, key))}: unknown key. {_MERGE_KEY}"
        elif isinstance(node, Table):
            yield from _merge_keys(node, (*where, key))


def _hint(struct: type[msgspec.Struct], key: str, known: Iterable[str]) -> str:
    if struct is CommandModel and key in _MANIFEST_ONLY:
        return f"{key!r} belongs in the fdl.yml of the folder that `path:` names."
    if struct is ManifestModel and key in _COMMAND_ONLY:
        return f"`{key}:` belongs in a command: write it below `commands:` and the name of the command."
    if key == "<<":
        return _MERGE_KEY
    hint = suggestion(key, known, known_as="keys")
    if struct is Training and not nearest(key, known):
        return f"{hint} If --{key} is an option of the program, write it under `options:` of a command."
    return hint


def _struct_in(annotation: Any) -> type[msgspec.Struct] | None:
    kinds = typing.get_args(annotation) or (annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)), None)
