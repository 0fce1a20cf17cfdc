"""`Args`: typed values, help, environment, schema, exit codes."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl.cli import Args, argument, option
from flodl.core import ArgsError, environment


@dataclass
class Train:
    """Train a model.

    On anything.
    """

    data: Path = argument(help="Where the data is.")  # noqa: RUF009
    shift: int = argument(0, help="How far to move it.")
    lr: float = option(1e-3, short="l", env="TRAIN_LR", help="The learning rate.")
    name: str = "job"
    mode: Literal["fast", "slow"] = option("fast", env="TRAIN_MODE")
    sizes: list[int] = option([1, 2], env="TRAIN_SIZES")  # noqa: RUF009
    save: str | None = option(None, bare="runs")
    compile: bool = True
    dry: bool = option(False, short="d")


def parse(*words):
    return Args(Train, name="train").parse(words)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--lr", "1e-4"], "lr", 1e-4),
        (["--lr=1"], "lr", 1.0),
        (["-l", "2"], "lr", 2.0),
        (["-l=2"], "lr", 2.0),
        (["-dl", "2"], "lr", 2.0),
        (["--lr", "1", "--lr", "2"], "lr", 2.0),
        (["--lr", "-1e-4"], "lr", -1e-4),
        (["-l=-3"], "lr", -3.0),
        (["--name", "yes"], "name", "yes"),
        (["--name", "1e-4"], "name", "1e-4"),
        (["--name=-5"], "name", "-5"),
        (["--name", "-5"], "name", "-5"),
        (["--name", "-l=3"], "name", "-l=3"),
        (["--name="], "name", ""),
        (["-5"], "shift", -5),
        (["--", "-5"], "shift", -5),
        (["--mode", "slow"], "mode", "slow"),
        (["--sizes", "3, 4,5", "--sizes", "6"], "sizes", [3, 4, 5, 6]),
        (["--sizes", ""], "sizes", []),
        (["--sizes=-1"], "sizes", [-1]),
        (["--save=-x"], "save", "-x"),
        (["--save=-5"], "save", "-5"),
        (["--save", "-5"], "save", "-5"),
        (["--sizes", "-1,-2"], "sizes", [-1, -2]),
        ([], "sizes", [1, 2]),
        ([], "save", None),
        (["--save"], "save", "runs"),
        (["--save", "x"], "save", "x"),
        (["--no-compile"], "compile", False),
        ([], "compile", True),
        (["-d"], "dry", True),
    ],
)
def test_the_type_of_a_field_decides_how_its_value_is_parsed(words, name, value):
    parsed = parse("digits", *words)
    assert getattr(parsed, name) == value
    assert type(getattr(parsed, name)) is type(value)
    assert parsed.data == Path("digits")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing argument '<data>'"),
        (["x", "--lr", "fast"], "'fast' is not a valid float"),
        (["x", "--mode", "medium"], "'medium' is not one of 'fast', 'slow'"),
        (["x", "--sizes", "1,b"], "'b' is not a valid integer"),
        (["x", "--sizes", "1,,2"], "'1,,2' has an empty item next to a comma"),
        (["x", "--sizes", "1,"], "has an empty item next to a comma"),
        (["x", "--lr"], "Option '--lr' requires an argument"),
        (["x", "--dry=yes"], "Option '--dry' does not take a value"),
        (["x", "-d=yes"], "Option '--dry' does not take a value"),
        (["x", "--mod", "fast"], "No such option '--mod'. (Did you mean"),
        (["x", "-z"], "No such option '-z'"),
        (["x", "1", "2"], "Got unexpected extra argument (2)"),
        (["x", "1", "-2"], "Got unexpected extra argument (-2)"),
    ],
)
def test_an_invalid_command_line_exits_with_2_and_prints_the_help_on_standard_error(capsys, words, message):
    with pytest.raises(SystemExit) as exit_info:
        parse(*words)
    shown = capsys.readouterr()
    assert exit_info.value.code == 2
    assert shown.out == ""
    first, blank, usage = shown.err.splitlines()[:3]
    assert first.startswith("error: ")
    assert message in first
    assert (blank, usage[:12]) == ("", "Usage: train")


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--nonsense", "-h"]])
def test_help_is_printed_even_if_the_rest_is_invalid(capsys, words):
    with pytest.raises(SystemExit) as exit_info:
        parse(*words)
    shown = capsys.readouterr()
    assert (exit_info.value.code, shown.err) == (0, "")
    assert shown.out.startswith("Usage: train [OPTIONS] <data> [<shift>]\n\n  Train a model.")
    for piece in ("Where the data is.", "[default: 0]", "-l, --lr FLOAT", "env var: TRAIN_LR", "[fast|slow]"):
        assert piece in shown.out
    assert "--compile / --no-compile" in shown.out
    assert "(repeat or comma-separate)" in shown.out


def test_a_generated_dataclass_docstring_is_not_shown_in_the_help(capsys):
    @dataclass
    class Job:
        x: int = 1

    with pytest.raises(SystemExit):
        Args(Job, name="job").parse(["--help"])
    assert "Job(" not in capsys.readouterr().out


def test_help_after_double_dashes_is_a_value(capsys):
    assert parse("--", "--help").data == Path("--help")


def test_the_schema_is_printed_even_if_the_rest_is_invalid(capsys):
    with pytest.raises(SystemExit) as exit_info:
        parse("--nonsense", "--fdl-schema")
    assert exit_info.value.code == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == Args(Train).schema()
    assert schema["args"] == [
        {"name": "data", "type": "path", "description": "Where the data is."},
        {
            "name": "shift",
            "type": "int",
            "description": "How far to move it.",
            "default": "0",
            "required": False,
        },
    ]
    assert list(schema["options"]) == sorted(schema["options"])
    assert schema["options"]["lr"] == {
        "type": "float",
        "description": "The learning rate.",
        "default": "0.001",
        "short": "l",
        "env": "TRAIN_LR",
    }
    assert schema["options"]["sizes"] == {"type": "list[int]", "default": "1,2", "env": "TRAIN_SIZES"}
    assert schema["options"]["mode"]["choices"] == ["fast", "slow"]
    assert schema["options"]["dry"] == {"type": "bool", "short": "d"}
    assert schema["strict"] is True  # unknown options are refused


def test_the_environment_overrides_the_default_and_the_command_line_overrides_both(monkeypatch, capsys):
    assert parse("x").lr == 1e-3
    monkeypatch.setenv("TRAIN_LR", "0.5")
    assert parse("x").lr == 0.5
    assert parse("x", "--lr", "2").lr == 2
    assert parse("x", "-dl", "2").lr == 2
    monkeypatch.setenv("TRAIN_LR", "")
    assert parse("x").lr == 1e-3


def test_a_value_from_the_environment_is_checked_like_any_other(monkeypatch, capsys):
    monkeypatch.setenv("TRAIN_SIZES", "7, 8")
    assert parse("x").sizes == [7, 8]
    monkeypatch.setenv("TRAIN_MODE", "medium")
    with pytest.raises(SystemExit):
        parse("x")
    assert "'medium' is not one of 'fast', 'slow'" in capsys.readouterr().err


def test_an_invalid_value_of_a_flag_variable_is_named(monkeypatch, capsys):
    @dataclass
    class Job:
        loud: bool = option(False, env="JOB_LOUD")

    monkeypatch.setenv("JOB_LOUD", "maybe")
    with pytest.raises(SystemExit):
        Args(Job).parse([])
    shown = capsys.readouterr().err
    assert "env var: 'JOB_LOUD'" in shown
    assert "'maybe' is not a valid boolean" in shown
    assert Args(Job).parse(["--no-loud"]) == Job(loud=False)
    monkeypatch.setenv("JOB_LOUD", "on")
    assert Args(Job).parse([]) == Job(loud=True)


def test_every_value_is_recorded_with_its_origin(monkeypatch):
    monkeypatch.setenv("TRAIN_MODE", "slow")
    parse("digits", "--lr", "2", "--no-compile")
    table = environment.resolved_config()
    assert {name: entry["origin"] for name, entry in table.items()} == {
        "data": "<data>",
        "shift": "default",
        "lr": "--lr",
        "name": "default",
        "mode": "$TRAIN_MODE",
        "sizes": "default",
        "save": "default",
        "compile": "--no-compile",
        "dry": "default",
    }
    assert table["lr"]["value"] == 2.0
    assert table["data"]["value"] == "digits"


def test_an_origin_from_fdl_is_kept(monkeypatch):
    inherited = {"lr": {"value": 2, "origin": "fdl.yml:7"}, "name": {"value": "a", "origin": "fdl.yml:8"}}
    monkeypatch.setenv(environment.RESOLVED_CONFIG, json.dumps(inherited))
    parse("x", "--lr", "2.0", "--name", "b")
    table = environment.resolved_config()
    assert table["lr"]["origin"] == "fdl.yml:7"
    assert table["name"] == {"value": "b", "origin": "--name"}


def test_a_variadic_argument_takes_all_remaining_words():
    @dataclass
    class Job:
        first: str
        rest: list[int] = argument([7])  # noqa: RUF009

    assert Args(Job).parse(["a"]).rest == [7]
    assert Args(Job).parse(["a", "1", "-2", "3"]).rest == [1, -2, 3]


@settings(deadline=None)
@given(
    lr=st.floats(allow_nan=False),
    shift=st.integers(-(10**12), 10**12),
    name=st.text(st.characters(exclude_characters="\0", codec="utf-8")),
)
def test_values_survive_the_round_trip_through_text(lr, shift, name):
    parsed = parse("x", str(shift), f"--lr={lr!r}", f"--name={name}")
    assert (parsed.lr, parsed.shift, parsed.name) == (lr, shift, name)


def test_an_option_does_not_take_the_next_option_as_its_value(capsys):
    @dataclass
    class Job:
        name: str = "x"
        lr: float = 1.0

    with pytest.raises(SystemExit) as exit_info:
        Args(Job).parse(["--name", "--lr", "3"])
    assert exit_info.value.code == 2
    assert (
        "'--name' requires an argument, but '--lr' follows. If that is the value, write --name=--lr"
        in capsys.readouterr().err
    )
    assert Args(Job).parse(["--name=--lr"]).name == "--lr"


def test_an_optional_list_stays_none_and_quotes_protect_commas():
    @dataclass
    class Job:
        maybe: list[int] | None = None
        tags: tuple[str, ...] = ("a,b",)

    assert Args(Job).parse([]) == Job(None, ("a,b",))
    assert Args(Job).parse(["--maybe", "1", "--tags", 'x,"y,z",""']) == Job([1], ("x", "y,z", ""))


def test_numbers_and_paths_in_a_list_of_words_are_converted():
    assert Args(Train).parse([Path("data"), 3, "--lr", 0.5]).shift == 3


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("data --lr 0.5", r"argv is 'data --lr 0\.5'\. Pass a list of words"),
        (3, r"argv is 3\. Pass a list"),
        (["data", None], "argv contains None, which is not a word"),
        (["data", True], "argv contains True"),
    ],
)
def test_a_command_line_that_is_not_a_list_of_words_raises(argv, message):
    with pytest.raises(ArgsError, match=message):
        Args(Train).parse(argv)
    with pytest.raises(ArgsError, match=r"Call it as Args\(Settings\)\.parse\(\)"):
        Args.parse(argv)


@dataclass
class Paths:
    """Paths."""

    output: Path = option(Path("~/default"))  # noqa: RUF009
    data: list[Path] = option([Path("~/a")])  # noqa: RUF009
    name: str = "~"


def test_a_tilde_at_the_start_of_a_path_is_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert Args(Paths).parse([]) == Paths(Path("/home/me/default"), [Path("/home/me/a")], "~")
    words = ["--output=~/r", "--data", "~/b,c~", "--name", "~/n"]
    assert Args(Paths).parse(words) == Paths(Path("/home/me/r"), [Path("/home/me/b"), Path("c~")], "~/n")
    assert Args(Paths).from_dict({"output": "~/r"}).output == Path("/home/me/r")


def test_a_path_with_a_tilde_in_the_manifest_keeps_its_origin(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    table = {"output": {"value": "~/r", "origin": "fdl.yml:3"}}
    monkeypatch.setenv(environment.RESOLVED_CONFIG, json.dumps(table))
    assert Args(Paths).parse(["--output", "~/r"]).output == Path("/home/me/r")
    assert environment.resolved_config()["output"]["origin"] == "fdl.yml:3"


@dataclass
class WithChoices:
    rate: float = option(1.0, choices=[1.0, 2.5])
    rates: tuple[float, ...] = option((1.0,), choices=[1.0, 2.5])
    level: int = option(1, choices=[1, 2])


@pytest.mark.parametrize("text", ["1", "1.0", "1.00", "1e0"])
def test_a_number_among_choices_may_be_written_in_another_way(text):
    assert Args(WithChoices).parse(["--rate", text]).rate == 1.0
    assert Args(WithChoices).parse(["--rates", f"{text},2.50"]).rates == (1.0, 2.5)
    assert Args(WithChoices).from_dict({"rate": 1, "level": 2}) == WithChoices(level=2)


@pytest.mark.parametrize("words", [["--rate", "2"], ["--rate", "x"], ["--level", "1.0"]])
def test_a_number_that_is_not_among_the_choices_is_an_error(words, capsys):
    with pytest.raises(SystemExit):
        Args(WithChoices).parse(words)
    assert "is not one of" in capsys.readouterr().err
