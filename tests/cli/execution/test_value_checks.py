"""Values are checked against the schema of the entry before it starts."""

import json

import pytest

from flodl.cli import container, main

SCRIPT = """
    import json
    from dataclasses import dataclass
    from pathlib import Path
    from flodl.cli import Args, argument, option

    @dataclass
    class Job:
        data: Path = argument()
        count: int = argument(3)
        lr: float = option(0.1, short="l", env="S_LR")
        epochs: int = 5
        output: str = "runs"
        every: int | None = option(None, bare=10)
        sizes: list[int] = option([1], env="S_SIZES")
        fast_mode: bool = False
        loud: bool = option(False, env="S_LOUD")
        compile: bool = True

    job = Args(Job).parse()
    print(json.dumps({**vars(job), "data": str(job.data)}))
"""
MANIFEST = """
    entry: python job.py
    commands:
      p:
        training: {lr: 0.5}
        options: {fast-mode: true, every: true}
"""


@pytest.fixture
def job(project):
    return project({"fdl.yml": MANIFEST, "job.py": SCRIPT})


def run_preset(capfd, *words):
    """Run the preset and return the values of its script. A dry run must show the same."""
    assert main(["p", *words]) == 0
    values = json.loads(capfd.readouterr().out)
    assert main(["run", "--dry-run", "--json", "p", *words]) == 0
    table = json.loads(capfd.readouterr().out)["values"]
    for name, value in values.items():
        shown = table.get(name.replace("_", "-"), {"value": value if value is None else False})
        assert shown["value"] == value, name
    return values


@pytest.mark.slow
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x", "--lr", "abc"], "Invalid value for '--lr' / '-l': 'abc' is not a valid float."),
        (
            ["x", "--lr", "1e999"],
            "Invalid value for '--lr' / '-l': '1e999' is not a valid float: it is too large.",
        ),
        (["x", "--epochs", "1.5"], "Invalid value for '--epochs': '1.5' is not a valid integer."),
        (["x", "--epochs"], "Option '--epochs' requires an argument."),
        (["x", "--every=often"], "Invalid value for '--every': 'often' is not a valid integer."),
        (["x", "--sizes", "1,,2"], "Invalid value for '--sizes': '1,,2' has an empty item next to a comma."),
        ([], "Missing argument '<data>'."),
        (["x", "many"], "Invalid value for '[<count>]': 'many' is not a valid integer."),
        (["x", "1", "2"], "Got unexpected extra argument (2)"),
    ],
)
def test_an_invalid_command_line_is_refused_in_two_lines(job, capfd, dry, words, message):
    assert main(["run", *dry, "p", *words]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err == f"error: {message}\nTry 'fdl p --help'.\n"


@pytest.mark.parametrize("flag", ["--version", "--fdl-schema"])
def test_info_flags_need_no_arguments(job, capfd, flag):
    assert main(["run", "--dry-run", "p", flag]) == 0


def test_an_entry_may_contain_the_arguments(job, capfd):
    (job / "fdl.yml").write_text("entry: python job.py digits\ncommands: {p: {training: {lr: 1}}}\n")
    assert main(["p"]) == 0
    assert json.loads(capfd.readouterr().out)["data"] == "digits"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--lr=-1e-3"], "lr", -1e-3),
        (["-l=-1"], "lr", -1.0),
        (["--epochs=-1"], "epochs", -1),
        (["--output=-x"], "output", "-x"),
        (["--every=-5"], "every", -5),
        (["--every", "-5"], "every", -5),
        (["--every", "--epochs", "2"], "every", 10),
        ([], "every", 10),
        (["--no-compile"], "compile", False),
        (["--loud"], "loud", True),
    ],
)
def test_typed_values_match_the_plan_and_reach_the_script(job, capfd, words, name, value):
    assert run_preset(capfd, "x", *words)[name] == value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "value"),
    [
        ([], True),
        (["--no-fast-mode"], False),
        (["--no-fast-mode", "--fast-mode"], True),
        (["--fast-mode", "--no-fast-mode"], False),
    ],
)
def test_a_flag_of_a_preset_can_be_negated(job, capfd, words, value):
    assert run_preset(capfd, "x", *words)["fast_mode"] is value


def test_a_value_of_a_preset_may_look_like_an_option(job, capfd):
    options = "{output: --lr, every: -5, epochs: -1}"
    (job / "fdl.yml").write_text(f"entry: python job.py\ncommands: {{p: {{options: {options}}}}}\n")
    values = run_preset(capfd, "x")
    assert (values["output"], values["every"], values["epochs"]) == ("--lr", -5, -1)


def test_a_flag_that_no_preset_sets_has_no_negation(job, capfd):
    (job / "fdl.yml").write_text("entry: python job.py\ncommands: {p: {training: {lr: 1}}}\n")
    assert main(["p", "x", "--no-fast-mode"]) == 2
    assert "No such option '--no-fast-mode'" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("on", True), ("Yes", True), ("0", False), ("off", False), ("", False)]
)
def test_a_flag_can_be_set_by_a_variable(job, capfd, monkeypatch, text, value):
    monkeypatch.setenv("S_LOUD", text)
    assert run_preset(capfd, "x")["loud"] is value
    assert run_preset(capfd, "x", "--no-loud")["loud"] is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "words", "message"),
    [
        ("S_LR", "abc", ["--lr", "5"], "$S_LR, for --lr: 'abc' is not a valid float."),
        ("S_LR", "abc", ["-l", "5"], "$S_LR, for --lr: 'abc' is not a valid float."),
        ("S_LR", "1e-999", ["-l", "5"], "$S_LR, for --lr: '1e-999' is not a valid float: it is too close"),
        ("S_LOUD", "maybe", ["--loud"], "$S_LOUD, for --loud: 'maybe' is not a valid bool."),
        ("S_SIZES", "1,,2", ["--sizes", "1"], "$S_SIZES, for --sizes: '1,,2' has an empty item next to"),
    ],
)
def test_a_wrong_variable_is_ignored_if_the_option_is_typed(
    job, capfd, monkeypatch, name, text, words, message
):
    monkeypatch.setenv(name, text)
    assert main(["p", "x"]) == 1
    assert message in capfd.readouterr().err
    run_preset(capfd, "x", *words)


def test_a_misplaced_option_of_run_is_explained(project, capfd):
    project(
        {
            "fdl.yml": "entry: python job.py\ncommands: {q: {training: {lr: 1}}, s: {run: echo}}",
            "fdl.big.yml": "training: {epochs: 7}",
            "job.py": SCRIPT,
        }
    )
    assert main(["q", "--dry-run"]) == 2
    assert "To see what would run: fdl run --dry-run q\n" in capfd.readouterr().err
    assert main(["big", "q", "--dry-run"]) == 2
    assert "To see what would run: fdl --env big run --dry-run q\n" in capfd.readouterr().err
    for words in (["run", "q", "--monitor=3001"], ["q", "--monitor=yes"], ["q", "--monitor"]):
        assert main(words) == 2
        expected = "the flag of fdl run takes no value: fdl run --monitor q\n"
        assert expected in capfd.readouterr().err
    assert main(["s", "--dry-run"]) == 1
    assert "`fdl s` has no --dry-run. Use `fdl run --dry-run s`." in capfd.readouterr().err


OVERRIDDEN = "fdl.big.yml:2: training.epochs is overridden by commands.run at fdl.yml:4. "


def test_an_overlay_value_that_a_preset_overrides_is_noted(project, capfd):
    root = project(
        {
            "fdl.yml": """
                entry: tool
                commands:
                  run:
                    training: {epochs: 5}
                  other:
                    training: {lr: 1}
            """,
            "fdl.big.yml": "training:\n  epochs: 100\n",
        }
    )
    assert main(["--env", "big", "run", "--dry-run"]) == 0
    shown = capfd.readouterr()
    assert "epochs: 5     # fdl.yml:4" in shown.out
    assert shown.err == f"note: {OVERRIDDEN}To change it, set commands.run.training.epochs.\n"
    assert main(["--env", "big", "run", "--dry-run", "other"]) == 0
    assert capfd.readouterr().err == ""
    main(["config", "lint"])
    assert f"note: {root}/{OVERRIDDEN}" in capfd.readouterr().err
    (root / "fdl.big.yml").write_text("commands: {run: {training: {epochs: 100}}}\n")
    assert main(["--env", "big", "run", "--dry-run"]) == 0
    shown = capfd.readouterr()
    assert ("epochs: 100" in shown.out, shown.err) == (True, "")


def test_lint_notes_deletions_of_an_overlay_and_ignored_files(project, capfd):
    root = project(
        {
            "fdl.yml": "entry: tool\nddp: {mode: sync}\ncommands:\n  other: {run: echo}\n",
            "fdl.night.yml": "commands:\n  other:\nddp: {mode: null}\n",
            "fdl.o.yml": "training: {epochs: 1}\n",
            "fdl.o.yaml": "training: {epochs: 2}\n",
        }
    )
    main(["config", "lint"])
    shown = capfd.readouterr().err
    assert (
        f"{root}/fdl.night.yml:2: commands.other: the null deletes the value from {root}/fdl.yml:4." in shown
    )
    assert f"{root}/fdl.night.yml:3: ddp.mode: the null deletes the value from {root}/fdl.yml:2." in shown
    assert (
        f"note: {root}/fdl.o.yml is ignored, because fdl.o.yaml in the same folder takes precedence." in shown
    )
    assert main(["config", "show", "o"]) == 0
    assert "epochs: 2" in capfd.readouterr().out


def test_missing_or_unused_docker_is_explained(project, capfd, monkeypatch, tmp_path):
    text = "entry: tool\ndocker: dev\ncommands: {p: {training: {lr: 1}}, s: {run: echo, docker: dev}}"
    project({"fdl.yml": text})
    monkeypatch.setattr(container, "inside_container", lambda: True)
    for name in ("p", "s"):
        assert main(["run", "--dry-run", name]) == 0
        assert "docker is not used, because fdl already runs in a container." in capfd.readouterr().err
    monkeypatch.setattr(container, "inside_container", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert main(["s"]) == 1
    assert "`docker` was not found, but the manifest has `docker:`." in capfd.readouterr().err


@pytest.mark.slow
def test_a_null_inside_a_dict_is_an_error(project, capfd):
    script = (
        "from dataclasses import dataclass, field\nfrom flodl.cli import Args\n"
        "@dataclass\nclass Job:\n    labels: dict[str, str] = field(default_factory=dict)\n"
        "print(Args(Job).parse())\n"
    )
    manifest = "entry: python job.py\ncommands:\n  p:\n    options: {labels: {cat: null}}\n"
    project({"fdl.yml": manifest, "job.py": script})
    assert main(["p"]) != 0
    assert "fdl.yml:4: options.labels: cat: an item is null. Remove it." in capfd.readouterr().err
