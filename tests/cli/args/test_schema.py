"""Schemas of other programs: conversion from and to JSON."""

import pytest

from flodl.cli.args.parameter import Parameter
from flodl.cli.args.schema import from_json, to_json
from flodl.core.errors import ArgsError


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([], "the schema is a list. Expected a map"),
        ({"opts": {}}, "unknown key 'opts'. Did you mean 'options'"),
        ({"options": []}, None),
        ({"options": {'e"ochs': {}}}, r"""'e"ochs' in the schema is not a name. Use letters"""),
        ({"options": {"x": {"type": "integer"}}}, "unknown type 'integer'. Did you mean 'int'"),
        (
            {"options": {"x": {"typ": "int"}}},
            "--x in the schema has an unknown key 'typ'. Did you mean 'type'",
        ),
        ({"options": {"help": {"type": "bool"}}}, "--help is reserved"),
        ({"options": {"x": {"type": "int", "short": "q"}}}, "the short name -q is reserved"),
        ({"options": {"x": {"type": "int", "short": "xy"}}}, "more than one letter"),
        (
            {"options": {"a": {"type": "int", "short": "x"}, "b": {"type": "int", "short": "x"}}},
            "--a and --b both use the short name -x",
        ),
        ({"options": {"x": {"type": "int", "choices": "a"}}}, "`choices` is 'a'. Expected a list"),
        ({"args": [{"type": "int"}]}, "has no name"),
        ({"args": [{"name": "x", "type": "int"}, {"name": "x", "type": "int"}]}, "<x> appears twice"),
        (
            {"args": [{"name": "x", "type": "list[int]", "variadic": True}, {"name": "y", "type": "int"}]},
            "<x> is variadic and must be last",
        ),
        (
            {"args": [{"name": "x", "type": "int", "required": True, "default": 3}]},
            "<x>: an argument cannot be required and have a default",
        ),
        (
            {"args": [{"name": "x", "type": "int", "required": False}, {"name": "y", "type": "int"}]},
            "<y> is required and cannot follow",
        ),
    ],
)
def test_mistakes_in_a_schema_are_errors(schema, message):
    if message is None:
        assert from_json(schema).parameters == ()
        return
    with pytest.raises(ArgsError, match=message):
        from_json(schema)


SCHEMA = {
    "args": [{"name": "data", "type": "path", "required": False}],
    "options": {
        "lr": {"type": "float", "default": "0.1", "short": "l"},
        "mode": {"type": "string", "choices": ["fast", "slow"]},
        "dry": {"type": "bool", "short": "d"},
        "sizes": {"type": "list[int]", "choices": ["1", "2"]},
    },
}


def test_a_schema_survives_a_round_trip():
    schema = from_json(SCHEMA)
    again = from_json(to_json(schema.parameters))
    assert (again.options, again.arguments) == (schema.options, schema.arguments)


def test_an_empty_bare_value_is_part_of_the_schema():
    parameter = Parameter("save", "option", "string", bare="")
    assert to_json([parameter]) == {"options": {"save": {"type": "string", "bare": ""}}}
    assert from_json(to_json([parameter])).options["save"].bare == ""
