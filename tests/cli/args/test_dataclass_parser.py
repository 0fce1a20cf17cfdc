"""Turning dataclasses into parameters: a mistake in a dataclass is an error that names the field."""

from dataclasses import InitVar, dataclass, field, make_dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import Literal

import pytest

from flodl.cli import Args, argument, option
from flodl.core.errors import ArgsError


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Mode(StrEnum):
    FAST = "fast"
    SLOW = "slow"


def define(*fields):
    return Args(make_dataclass("Job", fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("x", dict, option(None))], r"at 'Job\.x': <class 'dict'> cannot be parsed from a command line"),
        ([("x", int | str, option(1))], "cannot be parsed"),
        ([("x", list[bool], option([]))], "cannot be parsed"),
        ([("x", bool | None, option(None))], "Annotate it as bool"),
        ([("x", Literal[1, "a"], option(1))], "only strings or only integers"),
        ([("x", int, option())], r"at 'Job\.x': an option needs a default"),
        ([("x", int, option(1, env=""))], "env='' is not a valid variable name"),
        ([("x", int, option(1, env="A B"))], "env='A B' is not a valid variable name"),
        ([("x", bool, option(False, choices=[True]))], "a flag cannot have choices"),
        ([("x", int, option(1, bare=2))], "`bare` needs an optional field"),
        ([("x", int, option(1, short="xy"))], "must be one letter"),
        ([("x", int, option(1, short="1"))], "must be a letter"),
        ([("x", int, option(1, short="e"))], r"at 'Job\.x': -e is reserved for fdl"),
        ([("x", int, option(1, short="v"))], "-v is reserved"),
        ([("env", str, option("x"))], "--env is reserved"),
        ([("quiet", bool, option(False))], "--quiet is reserved"),
        ([("x", int, option("a"))], "'a' is not of type int"),
        ([("x", int, option(True))], "True is not of type int"),
        ([("x", float, option("1"))], "'1' is not of type float"),
        ([("x", str, option(1))], "1 is not of type string"),
        ([("x", Path, option(1))], "1 is not of type path"),
        ([("x", bool, option("yes"))], "'yes' is not of type bool"),
        ([("x", bool, option(1))], "1 is not of type bool"),
        ([("x", int, option(None))], r"at 'Job\.x': the default is None, .* Annotate it as T \| None"),
        ([("x", list[int], option(None))], "the default is None, but the field is not optional"),
        ([("x", list[int], option(3))], "the default 3 is not a list"),
        ([("x", list[str], option("abc"))], "the default 'abc' is not a list"),
        ([("x", list[int], option(["a"]))], "'a' is not of type int"),
        ([("x", int, option((1, 2)))], r"the default \(1, 2\) is not one int"),
        ([("x", int | None, option([1]))], r"the default \[1\] is not one int"),
        (
            [("x", Colour, option("red"))],
            r"at 'Job\.x': 'red' is not a member of Colour\. Use one of Colour\.RED",
        ),
        ([("x", Colour, option("RED"))], "'RED' is not a member of Colour"),
        ([("x", Colour | None, option("red"))], "'red' is not a member"),
        ([("x", Colour, argument("red"))], "'red' is not a member"),
        ([("x", list[Colour], option(["red"]))], "'red' is not a member"),
        ([("x", Colour, option(Colour.RED, choices=["RED"]))], "'RED' is not a member"),
        ([("x", Colour, option(Colour.RED, choices=[Colour.BLUE]))], "is not among the choices"),
        ([("x", Mode, option("fast"))], "'fast' is not a member of Mode"),
        ([("x", str, option(Mode.FAST))], "is not of type string"),
        ([("x", int | None, option(None, bare="a"))], "'a' is not of type int"),
        ([("x", str, option("c", choices=["a", "b"]))], r"'c' is not among the choices \['a', 'b'\]"),
        ([("x", bool, argument())], "a bool cannot be positional"),
        ([("x", int, argument(1)), ("y", int, argument())], r"Job\.y': a required argument cannot follow"),
        (
            [("x", list[str], argument()), ("y", int, argument())],
            r"Job\.y': it follows 'x', which is variadic",
        ),
        (
            [("x", int, option(1, short="s")), ("y", int, option(1, short="s"))],
            r"Job\.y': 'x' already uses the short name -s",
        ),
        (
            [("fast", bool, option(True)), ("no_fast", bool, option(False))],
            "--no-fast is already used by 'fast'",
        ),
        (
            [("no_fast", bool, option(False)), ("fast", bool, option(True))],
            r"at 'Job\.fast': --no-fast, which would switch it off, is already used by 'no_fast'",
        ),
    ],
)
def test_a_mistake_in_the_definition_names_the_field(fields, message):
    # Without kw_only, dataclass itself refuses a required field after one with a default.
    with pytest.raises(ArgsError, match=message):
        Args(make_dataclass("Job", fields, kw_only=True))


@pytest.mark.parametrize(
    ("annotation", "default", "words", "expected"),
    [
        (Colour, Colour.RED, [], Colour.RED),
        (Colour, Colour.RED, ["--x", "BLUE"], Colour.BLUE),
        (Mode, Mode.FAST, [], Mode.FAST),
        (Mode, Mode.FAST, ["--x", "SLOW"], Mode.SLOW),
        (Mode | None, None, [], None),
        (Mode | None, None, ["--x", "SLOW"], Mode.SLOW),
        (list[Mode], [Mode.FAST], [], [Mode.FAST]),
        (list[Mode], [Mode.FAST], ["--x", "SLOW,FAST"], [Mode.SLOW, Mode.FAST]),
        (float, 1, [], 1),
        (Path, "a", [], Path("a")),
        (list[int] | None, None, [], None),
        (list[int], (1, 2), [], [1, 2]),
        (list[int], (1, 2), ["--x", "3"], [3]),
        (tuple[int, ...], [1, 2], [], (1, 2)),
        (tuple[int, ...], (), ["--x", "3"], (3,)),
    ],
)
def test_valid_defaults_are_accepted(annotation, default, words, expected):
    assert define(("x", annotation, option(default))).parse(words).x == expected


def test_only_a_dataclass_can_become_a_command_line():
    with pytest.raises(ArgsError, match=r"is not a dataclass\. Decorate it with @dataclass"):
        Args(int)


def test_an_annotation_that_cannot_be_resolved_is_named():
    @dataclass
    class Job:
        x: "Nothing" = None  # noqa: F821

    with pytest.raises(ArgsError, match=r"at 'Job.x': name 'Nothing' is not defined"):
        Args(Job)


def test_annotations_alone_decide_the_parameter_types():
    class Colour(Enum):
        RED = 1
        BLUE = 2

    @dataclass
    class Job:
        data: Path
        size: int = 3
        colour: Colour = Colour.RED
        mode: Literal["a", "b"] = "a"
        level: Literal[1, 2] = 1
        name: str | None = None
        many: list[float] = field(default_factory=list)
        some: tuple[int, ...] = ()
        flag: bool = False
        derived: int = field(default=0, init=False)

    args = Args(Job)
    assert [(parameter.name, parameter.kind, parameter.type) for parameter in args.parameters] == [
        ("data", "argument", "path"),
        ("size", "option", "int"),
        ("colour", "option", "string"),
        ("mode", "option", "string"),
        ("level", "option", "int"),
        ("name", "option", "string"),
        ("many", "option", "list[float]"),
        ("some", "option", "list[int]"),
        ("flag", "option", "bool"),
    ]
    job = args.parse(["x", "--colour", "BLUE", "--level", "2", "--some", "1,2"])
    assert (job.colour, job.level, job.some) == (Colour.BLUE, 2, (1, 2))


@dataclass
class Plain:
    x: int = 1


@dataclass
class WithInitVar:
    x: InitVar[int]
    y: int = 1


@dataclass
class Underscored:
    _x: int = 1


@dataclass
class NoChoices:
    x: str = option("a", choices=[])


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Plain(), r"expected a dataclass, got an instance of Plain\. Pass the class: Args\(Plain\)"),
        (WithInitVar, r"at 'WithInitVar\.x': an InitVar cannot be set from the command line"),
        (Underscored, r"at 'Underscored\._x': a name cannot start with an underscore"),
        (NoChoices, r"at 'NoChoices\.x': choices=\[\] allows no value"),
    ],
)
def test_a_class_that_cannot_be_filled_from_a_command_line_is_refused(cls, message):
    with pytest.raises(ArgsError, match=message):
        Args(cls)


@pytest.mark.parametrize("name", ["ansi", "no_ansi", "no_color", "fdl_schema", "verbose", "refresh_schema"])
def test_field_names_that_fdl_uses_itself_are_refused(name):
    with pytest.raises(ArgsError, match="is reserved for fdl"):
        Args(make_dataclass("Job", [(name, bool, False)]))
