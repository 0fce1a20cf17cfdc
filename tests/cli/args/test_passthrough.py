"""Checking a command line that is forwarded to a program with a schema."""

import click
import pytest

from flodl.cli.args.passthrough import check_tail
from flodl.cli.args.schema import from_json

SCHEMA = {
    "args": [{"name": "data", "type": "path", "required": False}],
    "options": {
        "lr": {"type": "float", "default": "0.1", "short": "l"},
        "mode": {"type": "string", "choices": ["fast", "slow"]},
        "dry": {"type": "bool", "short": "d"},
        "sizes": {"type": "list[int]", "choices": ["1", "2"]},
    },
}


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
def test_a_lenient_schema_accepts_what_it_does_not_declare(tail):
    check_tail(from_json(SCHEMA), tuple(tail), title="fdl train")


@pytest.mark.parametrize("tail", [["--mode", "x"], ["--mode=x"], ["--sizes", "1,3"]])
def test_choices_are_always_checked(tail):
    with pytest.raises(click.BadParameter, match="is not one of"):
        check_tail(from_json(SCHEMA), tuple(tail), title="fdl train")


def test_option_types_are_always_checked():
    with pytest.raises(click.BadParameter, match="'abc' is not a valid float"):
        check_tail(from_json(SCHEMA), ("--lr", "abc"), title="fdl train")


@pytest.mark.parametrize("tail", [["--unknown"], ["-z"], ["a", "b"]])
def test_a_strict_schema_refuses_what_it_does_not_declare(tail):
    with pytest.raises(click.UsageError):
        check_tail(from_json({**SCHEMA, "strict": True}), tuple(tail), title="fdl train")
