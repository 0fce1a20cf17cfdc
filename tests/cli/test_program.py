import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version

import click
import pytest

import flodl
from flodl.cli import main
from flodl.cli.commands import SUMMARIES
from flodl.cli.commands import version as version_command
from flodl.cli.program import program
from flodl.core import environment, log
from flodl.core.errors import SetupError


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(capsys, arguments):
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    for name, summary in SUMMARIES.items():
        assert name in shown
        assert summary.split()[0] in shown


def test_every_listed_command_is_there_and_explains_itself(capsys):
    for name in SUMMARIES:
        assert main([name, "--help"]) == 0
        assert f"Usage: fdl {name}" in capsys.readouterr().out


@pytest.mark.parametrize("group", ["config", "libtorch", "schema"])
def test_a_group_lists_its_commands_in_whole_sentences(capsys, group):
    assert main([group]) == 0
    listed = capsys.readouterr().out.partition("Commands:\n")[2]
    assert listed
    assert "..." not in listed


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["quickstart", "--help"],
        ["test", "--help"],
        ["version"],
        ["config", "show"],
        ["config", "lint"],
        ["completions", "zsh"],
        ["schema", "list"],
        ["run", "--dry-run", "train", "quick"],
        ["train", "--help"],
    ],
)
def test_looking_around_imports_no_torch(arguments, project):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": "entry: sh tool.sh\nschema: {}\ncommands: {quick: {training: {lr: 1}}}",
        }
    )
    code = (
        "import sys; from flodl.cli import main; main(sys.argv[1:]); "
        "sys.exit(str({'torch', 'numpy'} & set(sys.modules)) if {'torch', 'numpy'} & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_command_is_met_with_the_nearest(capsys):
    assert main(["quikstart"]) == 1
    trouble = capsys.readouterr().err
    assert (
        trouble == "error: there is no command 'quikstart'. Did you mean 'quickstart'?\nTry 'fdl --help'.\n"
    )


def test_an_unknown_option_is_met_with_the_help_of_its_command(capsys):
    assert main(["version", "--jsn"]) == 2
    trouble = capsys.readouterr().err
    assert "--jsn" in trouble
    assert "Did you mean" in trouble
    assert "Try 'fdl version --help'." in trouble


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        (["version"], log.Verbosity.NORMAL),
        (["-q", "version"], log.Verbosity.QUIET),
        (["version", "--quiet"], log.Verbosity.QUIET),
        (["-v", "version"], log.Verbosity.VERBOSE),
        (["version", "-v"], log.Verbosity.VERBOSE),
        (["version", "-vv"], log.Verbosity.DEBUG),
        (["-vvv", "version"], log.Verbosity.TRACE),
        (["-vvvvv", "version"], log.Verbosity.TRACE),
        (["-vv", "version", "-q"], log.Verbosity.QUIET),
        (["version", "-q", "-v"], log.Verbosity.VERBOSE),
    ],
)
def test_verbosity_is_set_here_and_for_children(capsys, arguments, level):
    assert main(arguments) == 0
    assert log.verbosity() == level
    given = any(argument.startswith(("-v", "-q", "--quiet")) for argument in arguments)
    assert os.environ["FLODL_VERBOSITY"] == (str(int(level)) if given else "normal")


@pytest.mark.parametrize(
    "arguments", [["--no-color", "version"], ["version", "--no-color"], ["--no-ansi", "version"]]
)
def test_colour_can_be_refused_here_and_for_children(capsys, arguments):
    assert main(arguments) == 0
    assert (os.environ["NO_COLOR"], os.environ["FLODL_COLOR"]) == ("1", "never")


def test_colour_can_be_demanded_against_the_environment(capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["--ansi", "nonsense"]) == 1
    assert os.environ["FLODL_COLOR"] == "always"
    assert capsys.readouterr().err.startswith("\x1b[31merror:\x1b[0m there is no command")


@pytest.mark.parametrize(
    "arguments", [["--ansi", "--no-ansi", "version"], ["--ansi", "version", "--no-ansi"]]
)
def test_colour_cannot_be_both(capsys, arguments):
    assert main(arguments) == 1
    assert "--ansi and --no-ansi are mutually exclusive" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, None),
        ({"NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ({"NO_COLOR": "1", "FLODL_COLOR": "always"}, True),
        ({"FORCE_COLOR": "1", "FLODL_COLOR": "never"}, False),
        ({"FLODL_COLOR": "auto", "FORCE_COLOR": "1"}, True),
    ],
)
def test_a_flag_comes_before_no_color_before_force_color(monkeypatch, variables, wanted):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment.color_setting() is wanted


def failing(monkeypatch, error):
    @click.command("version")
    def broken():
        raise error

    monkeypatch.setattr(version_command, "command", broken)


def test_an_error_of_flodl_is_one_line_and_code_1(capsys, monkeypatch):
    failing(monkeypatch, SetupError("the thing is 3; give 2."))
    assert main(["version"]) == 1
    assert capsys.readouterr().err == "error: the thing is 3; give 2.\n"


def test_debugging_shows_where_an_error_came_from(capsys, monkeypatch):
    failing(monkeypatch, SetupError("the thing is 3; give 2."))
    assert main(["-vv", "version"]) == 1
    trouble = capsys.readouterr().err
    assert "Traceback" in trouble
    assert trouble.endswith("error: the thing is 3; give 2.\n")


def test_a_mistake_in_flodl_itself_is_not_hidden(monkeypatch):
    failing(monkeypatch, ZeroDivisionError("a mistake"))
    with pytest.raises(ZeroDivisionError):
        main(["version"])


def test_an_interrupt_ends_with_130(capsys, monkeypatch):
    failing(monkeypatch, KeyboardInterrupt())
    assert main(["version"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_reader_that_stops_listening_is_no_drama():
    reader, writer = os.pipe()
    os.close(reader)
    code = "import sys; from flodl.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, "--help"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_the_version_is_told(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"flodl {flodl.__version__}\n"


def test_versions_are_told_as_text_and_as_json(capsys):
    assert main(["version"]) == 0
    assert f"torch     {version('torch')}\n" in capsys.readouterr().out
    assert main(["version", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == {
        "flodl": flodl.__version__,
        "torch": version("torch"),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    assert flodl.__version__ == version("flodl")


def test_the_lazy_group_answers_completion():
    with click.Context(program, info_name="fdl") as ctx:
        assert [item.value for item in program.shell_complete(ctx, "q")] == ["quickstart"]


def test_in_a_deleted_folder_everything_is_still_explained(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for words in (["--help"], ["version"], ["train", "--help"], ["config", "show"], ["init", "x"]):
        code = main(words)
        shown = capsys.readouterr()
        assert code == (0 if words in (["--help"], ["version"]) else 1)
        assert "Traceback" not in shown.err
        if words != ["version"]:
            assert "the working directory is gone. Go into one that exists" in shown.err


def test_a_folder_that_cannot_be_looked_into_is_one_without_a_manifest(project, capsys):
    """A name that is too long is refused by the system in the same way, also for those who may see all."""
    project({"fdl.yml": f"commands: {{far: {{path: {'x' * 300}}}, near: {{run: echo}}}}"})
    assert main(["--help"]) == 0
    assert "near" in capsys.readouterr().out
    for words in (["far"], ["far", "--help"], ["config", "lint"]):
        assert main(words) == 1
        assert "no fdl.yml found in" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", [["--help"], ["config", "show"], ["api-ref"]])
def test_an_output_that_is_full_is_said(project, words):
    project({"fdl.yml": "description: x"})
    code = "import sys; from flodl.cli import main; sys.exit(main())"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "error: No space left on device. -vv shows where.\n")


def test_a_reader_that_has_gone_is_nobodys_mistake(project):
    project({"fdl.yml": "description: x"})
    code = "import sys; from flodl.cli import main; sys.exit(main(['--help']))"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_name_that_is_like_none_gets_the_commands_of_the_project(project, capsys):
    root = project({"fdl.yml": "commands: {zebra: {run: echo}, yak: {run: echo}}"})
    assert main(["qqqqq"]) == 1
    assert (
        f"{root}/fdl.yml has yak, zebra; `fdl --help` lists those of fdl itself." in capsys.readouterr().err
    )


@pytest.mark.parametrize("words", [["config", "shw"], ["schema", "lst"], ["libtorch", "lst"]])
def test_a_group_refuses_what_it_does_not_know_with_the_nearest(words, capsys):
    assert main(words) == 1
    trouble = capsys.readouterr().err
    assert f"`fdl {words[0]}` has no command {words[1]!r}. Did you mean" in trouble
    assert f"Try 'fdl {words[0]} --help'." in trouble
