"""The project of a command line: the selected overlay, help and typos."""

import pytest

from flodl.cli import main

FILES = {
    "fdl.yml": """
        description: A project of mine
        commands:
          hello: {run: echo base, description: Say hello}
          train:
          plain: {run: echo plain}
          broken: {run: a, path: b}
    """,
    "fdl.ci.yml": "commands: {hello: {run: echo ci}}",
    "fdl.prod.yml": "commands: {hello: {run: echo prod}, plain: }",
    "train/fdl.yml": "description: Train the thing\nentry: echo\ncommands: {quick: {options: {x: 1}}}",
}


@pytest.mark.parametrize(
    ("words", "variable", "output"),
    [
        (["hello"], "", "base"),
        (["--env", "ci", "hello"], "", "ci"),
        (["--env=ci", "hello"], "", "ci"),
        (["hello", "--env", "ci"], "", "ci"),
        (["hello"], "ci", "ci"),
        (["--env", "prod", "hello"], "ci", "prod"),
        (["ci", "hello"], "", "ci"),
        (["-v", "ci", "hello"], "", "ci"),
        (["--no-append", "--no-ansi", "ci", "hello"], "", "ci"),
        (["-v", "hello"], "ci", "ci"),
        (["hello", "--", "--env", "prod"], "", "base --env prod"),
    ],
)
def test_an_overlay_is_selected_by_flag_variable_or_first_word(
    project, capfd, monkeypatch, words, variable, output
):
    project(FILES)
    monkeypatch.setenv("FDL_ENV", variable)
    assert main(words) == 0
    assert capfd.readouterr().out == f"{output}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env"], "--env requires a value, got nothing"),
        (["--env=", "hello"], "--env requires a value"),
        (["--env", "--quiet", "hello"], "--env requires a value, got '--quiet'"),
        (["--env", "ci", "hello", "--env=prod"], "--env was given more than once: ci, prod"),
        (["--env", "nope", "hello"], "--env asks for the environment 'nope', but there is no"),
    ],
)
def test_an_invalid_overlay_is_an_error(project, capsys, words, message):
    project(FILES)
    assert main(words) == 1
    assert message in capsys.readouterr().err


def test_a_variable_that_names_an_unknown_overlay_is_an_error(project, capsys, monkeypatch, tmp_path):
    project(FILES)
    monkeypatch.setenv("FDL_ENV", "nope")
    assert main(["hello"]) == 1
    assert "FDL_ENV asks for the environment 'nope'" in capsys.readouterr().err


def test_outside_a_project_an_overlay_is_an_error(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["--env", "ci", "hello"]) == 1
    assert "--env asks for the environment 'ci', but there is no fdl.yml in" in capsys.readouterr().err


def test_with_a_variable_the_first_word_is_always_a_command(project, capfd, monkeypatch):
    project({**FILES, "fdl.hello.yml": ""})
    monkeypatch.setenv("FDL_ENV", "ci")
    assert main(["hello"]) == 0
    assert capfd.readouterr().out == "ci\n"


@pytest.mark.parametrize("name", ["hello", "version", "quickstart"])
def test_a_first_word_that_is_a_command_and_an_overlay_is_ambiguous(project, capsys, name):
    project({**FILES, f"fdl.{name}.yml": ""})
    assert main([name]) == 1
    assert (
        f"{name!r} is ambiguous: it is a command and an environment (fdl.{name}.yml)"
        in capsys.readouterr().err
    )


def test_the_help_shows_the_project(project, capsys):
    project(FILES)
    assert main(["ci", "--help"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "Commands of fdl.yml (A project of mine):" in shown.out
    rows = shown.out.split("Commands of fdl.yml")[1].splitlines()[1:5]
    assert [row.split(maxsplit=1) for row in rows] == [
        ["broken", "(sub-command)"],
        ["hello", "Say hello"],
        ["plain", "echo plain"],
        ["train", "Train the thing"],
    ]
    assert "  ci    (active)\n  prod" in shown.out


def test_an_overlay_can_remove_a_command(project, capsys):
    project(FILES)
    assert main(["prod", "plain"]) == 1
    assert "there is no command 'plain'" in capsys.readouterr().err


def test_a_typo_gets_the_nearest_command(project, capsys):
    project(FILES)
    assert main(["helo"]) == 1
    assert "there is no command 'helo'. Did you mean 'hello'" in capsys.readouterr().err


def test_a_project_command_replaces_a_built_in_one_which_stays_reachable(project, capfd):
    project({"fdl.yml": "commands: {version: {run: echo mine}, run: {run: echo default}}"})
    for words in (["version"], ["run", "version"]):
        assert main(words) == 0
        assert capfd.readouterr().out == "mine\n"
    assert main(["--builtin", "version"]) == 0
    assert capfd.readouterr().out.startswith("flodl")
    assert main(["run"]) == 0
    assert main(["run", "--", "--epochs", "3"]) == 0
    assert capfd.readouterr().out == "default\ndefault --epochs 3\n"


def test_the_help_and_lint_say_how_to_call_a_replaced_built_in_command(project, capsys):
    project({"fdl.yml": "commands: {test: {run: pytest}}"})
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert "  --builtin test  Check flodl itself" in shown
    assert "  test  pytest" in shown
    assert main(["config", "lint"]) == 0
    assert "`fdl test` and `fdl run test` run this one, `fdl --builtin test` runs" in capsys.readouterr().err


def test_with_builtin_an_unknown_name_is_not_looked_up_in_the_project(project, capsys):
    project(FILES)
    assert main(["--builtin", "hello"]) == 1
    assert "there is no built-in command 'hello'" in capsys.readouterr().err


def test_in_a_broken_project_a_built_in_command_runs_and_says_so(project, capsys):
    project({"fdl.yml": "commands: [1"})
    assert main(["version"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("flodl")
    assert "This is the built-in `fdl version`, because the project cannot be read." in shown.err
    assert main(["config", "lint"]) == 1
    assert "built-in" not in capsys.readouterr().err


SCRIPT = """
from dataclasses import dataclass
from flodl.cli import Args, option

@dataclass
class Settings:
    epochs: int = option(5, help="How long.")

print(Args(Settings).parse())
"""


def test_the_help_of_run_shows_the_options_of_the_projects_program(project, capsys):
    project({"fdl.yml": "entry: python t.py\ncommands: {run: {training: {epochs: 2}}}", "t.py": SCRIPT})
    assert main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--dry-run" in shown
    assert "runs  python t.py --epochs 2" in shown
    assert "--epochs INT      How long.  [default: 5]" in shown


def test_the_help_of_run_survives_a_broken_project(project, capsys):
    project({"fdl.yml": "commands: [1"})
    assert main(["run", "--help"]) == 0
    shown = capsys.readouterr()
    assert "--dry-run" in shown.out
    assert "fdl.yml:1" in shown.err


@pytest.mark.parametrize(
    ("words", "pieces"),
    [
        (
            ["hello", "--help"],
            ["Usage: fdl hello [-- ARGS", "Say hello", "echo base [ARGS...]", "--no-append"],
        ),
        (
            ["train", "-h"],
            [
                "Usage: fdl train [<preset>] [OPTIONS]",
                "Train the thing",
                "Presets:\n  quick",
                "runs  echo",
                "--refresh-schema",
            ],
        ),
        (
            ["train", "quick", "--help"],
            ["Usage: fdl train quick", "options.x  1  (train/fdl.yml:3)", "echo --x 1"],
        ),
    ],
)
def test_every_kind_of_command_has_help_on_standard_output(project, capsys, words, pieces):
    project(FILES)
    assert main(words) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    for piece in pieces:
        assert piece in shown.out


def test_help_of_a_preset_lists_the_missing_arguments(project, capsys):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": "entry: tool\ncommands: {quick: {options: {x: 1}}}\n"
            "schema: {args: [{name: data, type: path, description: The data}]}",
        }
    )
    assert main(["train", "quick", "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Usage: fdl train quick <data> [OPTIONS]\n\nArguments:\n  <data>  The data\n")


def test_help_of_an_entry_lists_its_schema(project, capsys):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": """
                entry: tool
                docker: dev
                arg-name: recipe
                training: {lr: 1e-3}
                schema:
                  args: [{name: data, type: path, description: The data}]
                  options:
                    lr: {type: float, short: l, env: LR, default: 0.1, description: The rate}
                    sizes: {type: "list[int]"}
                    mode: {type: string, choices: [fast, slow]}
                    dry: {type: bool}
                commands: {quick: {options: {mode: fast}}, tidy: {run: rm -r x}}
            """,
        }
    )
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    for piece in (
        "Usage: fdl train [<recipe>|<command>] <data> [OPTIONS]",
        "<data>  The data",
        "Recipes:\n  quick",
        "tidy  rm -r x",
        "-l, --lr FLOAT    The rate  [default: 0.1]  [env: LR]",
        "(repeat or comma-separate)",
        "[possible: fast, slow]",
        "docker  dev",
        "training.lr  0.001  (train/fdl.yml:4)",
    ):
        assert piece in shown


def test_verbosity_before_the_dashes_is_passed_on_in_the_environment(project, capfd):
    project({"fdl.yml": "commands: {say: {run: 'echo $FLODL_VERBOSITY $FLODL_COLOR'}}"})
    assert main(["say", "-vv", "--no-ansi", "--", "-v"]) == 0
    assert capfd.readouterr().out == "3 never -v\n"


def test_run_shows_what_would_run_and_starts_nothing(project, capsys):
    root = project(FILES)
    assert main(["run", "--dry-run", "train", "quick", "--x", "2", "a b"]) == 0
    assert capsys.readouterr().out == (
        f"# echo --x 1 --x 2 'a b'\n# in {root}/train\n"
        "entry: echo   # train/fdl.yml:2\n"
        'x: "2"        # --x\n'
    )


def test_a_dry_run_prints_json(project, capsys):
    import json

    root = project(FILES)
    assert main(["run", "--dry-run", "--json", "hello", "--", "a b"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "command": ["sh", "-c", "echo base 'a b'"],
        "folder": str(root),
        "values": {
            "run": {"value": "echo base", "origin": "fdl.yml:3"},
            "arguments": {"value": ["a b"], "origin": "command line"},
        },
    }


@pytest.mark.parametrize(
    "words",
    [
        ["--dry-run", "hello", "--json"],
        ["--json", "hello", "--dry-run"],
        ["hello", "--json", "--dry-run"],
        ["hello", "--dry-run", "--json"],
    ],
)
def test_a_dry_run_prints_json_wherever_its_options_are(project, capsys, words):
    import json

    project(FILES)
    assert main(["run", *words]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == ["sh", "-c", "echo base"]


def test_json_after_the_separator_belongs_to_the_command(project, capsys):
    project(FILES)
    assert main(["run", "--dry-run", "hello", "--", "--json"]) == 0
    assert "echo base --json" in capsys.readouterr().out


def test_run_without_a_name_needs_a_command_called_run(project, capsys):
    project(FILES)
    assert main(["run"]) == 1
    assert "name a command" in capsys.readouterr().err
    assert main(["run", "helo"]) == 1
    assert "Did you mean 'hello'" in capsys.readouterr().err


def test_run_outside_a_project_is_an_error(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["run"]) == 1
    assert "no fdl.yml found in" in capsys.readouterr().err
