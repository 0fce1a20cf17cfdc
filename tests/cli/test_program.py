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


def test_every_listed_command_exists_and_has_help(capsys):
    for name in SUMMARIES:
        assert main([name, "--help"]) == 0
        assert f"Usage: fdl {name}" in capsys.readouterr().out


@pytest.mark.parametrize("group", ["config", "libtorch", "schema"])
def test_a_group_lists_its_commands_with_full_summaries(capsys, group):
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
def test_help_and_inspection_do_not_import_torch(arguments, project):
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


@pytest.mark.parametrize(
    "arguments", [["quickstart", "--out="], ["monitor", ""], ["hf", "export", "model", "--out", ""]]
)
def test_an_empty_path_is_not_the_working_directory(capsys, arguments):
    assert main(arguments) == 2
    assert "the path is empty. Pass a path; '.' is the working directory." in capsys.readouterr().err


def test_an_unknown_command_gets_a_suggestion(capsys):
    assert main(["quikstart"]) == 1
    errors = capsys.readouterr().err
    assert errors == "error: there is no command 'quikstart'. Did you mean 'quickstart'?\nTry 'fdl --help'.\n"


@pytest.mark.parametrize(("name", "meant"), [("new", "fdl init NAME"), ("compare", "fdl monitor RUN RUN")])
def test_a_command_of_other_tools_gets_the_name_that_it_has_here(capsys, name, meant):
    assert main([name]) == 1
    assert f"there is no command {name!r}. `{meant}`" in capsys.readouterr().err


def test_an_unknown_option_gets_a_suggestion_and_the_help_command(capsys):
    assert main(["version", "--jsn"]) == 2
    errors = capsys.readouterr().err
    assert "--jsn" in errors
    assert "Did you mean" in errors
    assert "Try 'fdl version --help'." in errors


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
    passed = any(argument.startswith(("-v", "-q", "--quiet")) for argument in arguments)
    assert os.environ["FLODL_VERBOSITY"] == (str(int(level)) if passed else "normal")


@pytest.mark.parametrize(
    "arguments", [["--no-color", "version"], ["version", "--no-color"], ["--no-ansi", "version"]]
)
def test_colour_can_be_disabled_here_and_for_children(capsys, arguments):
    assert main(arguments) == 0
    assert (os.environ["NO_COLOR"], os.environ["FLODL_COLOR"]) == ("1", "never")


def test_ansi_overrides_no_color(capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["--ansi", "nonsense"]) == 1
    assert os.environ["FLODL_COLOR"] == "always"
    assert capsys.readouterr().err.startswith("\x1b[31merror:\x1b[0m there is no command")


@pytest.mark.parametrize(
    "arguments", [["--ansi", "--no-ansi", "version"], ["--ansi", "version", "--no-ansi"]]
)
def test_ansi_and_no_ansi_are_mutually_exclusive(capsys, arguments):
    assert main(arguments) == 1
    assert "--ansi and --no-ansi are mutually exclusive" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "expected"),
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
def test_precedence_is_flag_then_no_color_then_force_color(monkeypatch, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment.color_setting() is expected


def failing(monkeypatch, error):
    @click.command("version")
    def broken():
        raise error

    monkeypatch.setattr(version_command, "command", broken)


def test_a_flodl_error_is_one_line_and_exit_code_1(capsys, monkeypatch):
    failing(monkeypatch, SetupError("expected 2, got 3."))
    assert main(["version"]) == 1
    assert capsys.readouterr().err == "error: expected 2, got 3.\n"


def test_vv_shows_the_traceback(capsys, monkeypatch):
    failing(monkeypatch, SetupError("expected 2, got 3."))
    assert main(["-vv", "version"]) == 1
    errors = capsys.readouterr().err
    assert "Traceback" in errors
    assert errors.endswith("error: expected 2, got 3.\n")


def test_a_bug_in_flodl_is_not_hidden(monkeypatch):
    failing(monkeypatch, ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        main(["version"])


def test_an_interrupt_ends_with_130(capsys, monkeypatch):
    failing(monkeypatch, KeyboardInterrupt())
    assert main(["version"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_closed_pipe_is_not_an_error():
    reader, writer = os.pipe()
    os.close(reader)
    code = "import sys; from flodl.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, "--help"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"flodl {flodl.__version__}\n"


def test_versions_are_printed_as_text_and_as_json(capsys):
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


def test_the_lazy_group_completes_commands():
    with click.Context(program, info_name="fdl") as ctx:
        assert [item.value for item in program.shell_complete(ctx, "q")] == ["quickstart"]


def test_in_a_deleted_folder_errors_are_explained(tmp_path, monkeypatch, capsys):
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
            assert "the working directory no longer exists. Change to one that does" in shown.err


def test_an_unreadable_folder_counts_as_a_folder_without_a_manifest(project, capsys):
    """The system refuses a name that is too long in the same way, even for root."""
    project({"fdl.yml": f"commands: {{far: {{path: {'x' * 300}}}, near: {{run: echo}}}}"})
    assert main(["--help"]) == 0
    assert "near" in capsys.readouterr().out
    for words in (["far"], ["far", "--help"], ["config", "lint"]):
        assert main(words) == 1
        assert "no fdl.yml found in" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", [["--help"], ["config", "show"], ["api-ref"]])
def test_a_full_output_device_is_reported(project, words):
    project({"fdl.yml": "description: x"})
    code = "import sys; from flodl.cli import main; sys.exit(main())"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "error: No space left on device. -vv shows the traceback.\n")


def test_a_pipe_closed_by_its_reader_is_not_an_error(project):
    project({"fdl.yml": "description: x"})
    code = "import sys; from flodl.cli import main; sys.exit(main(['--help']))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_name_unlike_any_command_gets_the_commands_of_the_project(project, capsys):
    root = project({"fdl.yml": "commands: {zebra: {run: echo}, yak: {run: echo}}"})
    assert main(["qqqqq"]) == 1
    assert (
        f"{root}/fdl.yml has yak, zebra; `fdl --help` lists the built-in commands." in capsys.readouterr().err
    )


@pytest.mark.parametrize("words", [["config", "shw"], ["schema", "lst"], ["libtorch", "lst"]])
def test_an_unknown_command_of_a_group_gets_a_suggestion(words, capsys):
    assert main(words) == 1
    errors = capsys.readouterr().err
    assert f"`fdl {words[0]}` has no command {words[1]!r}. Did you mean" in errors
    assert f"Try 'fdl {words[0]} --help'." in errors


@pytest.mark.parametrize("module", ["flodl", "flodl.cli"])
def test_the_package_runs_as_fdl_without_torch(module, tmp_path):
    words = [sys.executable, "-X", "importtime", "-m", module, "--help"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: fdl ")
    assert " torch\n" not in done.stderr


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["monitor", "run", "--csv"], "fdl monitor"),
        (["-v", "hf", "export", "--out"], "fdl hf export"),
    ],
)
def test_an_option_without_its_value_points_to_the_help_of_its_command(words, command, capsys):
    assert main(words) != 0
    assert f"Try '{command} --help'." in capsys.readouterr().err
