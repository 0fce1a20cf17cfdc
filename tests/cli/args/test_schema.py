"""Schemas of other programs: read, checked, and held against a command line that is only passed on."""

import click
import pytest

from flodl.cli.args.parameter import Parameter
from flodl.cli.args.passthrough import check_tail
from flodl.cli.args.schema import from_json, to_json
from flodl.core.errors import ArgsError


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([], "the schema is a list. Write a map"),
        ({"opts": {}}, "unknown key 'opts'. Did you mean 'options'"),
        ({"options": []}, None),
        ({"options": {"x": {"type": "integer"}}}, "unknown type 'integer'. Did you mean 'int'"),
        (
            {"options": {"x": {"typ": "int"}}},
            "--x of the schema has an unknown key 'typ'. Did you mean 'type'",
        ),
        ({"options": {"help": {"type": "bool"}}}, "--help is reserved"),
        ({"options": {"x": {"type": "int", "short": "q"}}}, "the short name -q is reserved"),
        ({"options": {"x": {"type": "int", "short": "xy"}}}, "more than one letter"),
        (
            {"options": {"a": {"type": "int", "short": "x"}, "b": {"type": "int", "short": "x"}}},
            "--a and --b both declare short -x",
        ),
        ({"options": {"x": {"type": "int", "choices": "a"}}}, "Write a list"),
        ({"args": [{"type": "int"}]}, "has no name"),
        ({"args": [{"name": "x", "type": "int"}, {"name": "x", "type": "int"}]}, "<x> stands twice"),
        (
            {"args": [{"name": "x", "type": "list[int]", "variadic": True}, {"name": "y", "type": "int"}]},
            "<x> is variadic and must be last",
        ),
        ({"args": [{"name": "x", "type": "int", "required": True, "default": 3}]}, "contradiction"),
        (
            {"args": [{"name": "x", "type": "int", "required": False}, {"name": "y", "type": "int"}]},
            "<y> is required and cannot follow",
        ),
    ],
)
def test_what_is_wrong_with_a_schema_is_said(schema, message):
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


def test_a_schema_survives_the_way_there_and_back():
    schema = from_json(SCHEMA)
    again = from_json(to_json(schema.parameters))
    assert (again.options, again.arguments) == (schema.options, schema.arguments)


@pytest.mark.parametrize(
    "tail",
    [
        [],
        ["--mode"],
        ["--lr"],
        ["--unknown", "x"],
        ["-zy"],
        ["a", "b"],
        ["--help"],
        ["-V"],
        ["--", "--mode", "x"],
    ],
)
def test_what_a_schema_does_not_know_is_passed_on(tail):
    check_tail(from_json(SCHEMA), tuple(tail), title="fdl train")


@pytest.mark.parametrize("tail", [["--mode", "x"], ["--mode=x"], ["--sizes", "1,3"]])
def test_choices_count_always(tail):
    with pytest.raises(click.BadParameter, match="is not one of"):
        check_tail(from_json(SCHEMA), tuple(tail), title="fdl train")


def test_types_of_options_count_always():
    with pytest.raises(click.BadParameter, match="'abc' is not a valid float"):
        check_tail(from_json(SCHEMA), ("--lr", "abc"), title="fdl train")


def test_the_value_of_a_bare_option_is_told_even_if_it_is_empty():
    one = Parameter("save", "option", "string", bare="")
    assert to_json([one]) == {"options": {"save": {"type": "string", "bare": ""}}}
    assert from_json(to_json([one])).options["save"].bare == ""


@pytest.mark.parametrize("tail", [["--unknown"], ["-z"], ["a", "b"]])
def test_a_strict_schema_refuses_the_rest(tail):
    with pytest.raises(click.UsageError):
        check_tail(from_json({**SCHEMA, "strict": True}), tuple(tail), title="fdl train")
