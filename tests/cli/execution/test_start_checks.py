"""What can never start is a problem for lint and for the run, with its line; what may not, a note."""

import json

import pytest

from flodl.cli import container, main

COMPOSE = "services:\n  dev:\n    image: x\n"


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch):
    monkeypatch.setattr(container, "inside_container", lambda: False)


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("entry: python nosuch.py", ["run", "x"], "fdl.yml:2: entry: there is no nosuch.py in "),
        ("entry: python -u -W error nosuch.py", ["run", "x"], "fdl.yml:2: entry: there is no nosuch.py in "),
        ("entry: python 't.py", ["run", "x"], "fdl.yml:2: entry: a quote in "),
    ],
)
def test_an_entry_that_can_never_work_is_refused_by_lint_and_run(project, capsys, text, words, message):
    project({"fdl.yml": f"description: d\n{text}\ncommands: {{x: {{training: {{lr: 1}}}}}}\n"})
    assert main(["config", "lint"]) == 1
    assert message in capsys.readouterr().err
    assert main(words) == 1
    assert message in capsys.readouterr().err


def test_an_empty_entry_is_named_with_its_line(project, capsys):
    project({"fdl.yml": 'description: d\nentry: ""'})
    assert main(["config", "lint"]) == 1
    assert "fdl.yml:2: entry: it is empty." in capsys.readouterr().err


def test_a_program_that_is_not_here_is_a_note_and_an_error_with_its_line_when_it_runs(project, capsys):
    project({"fdl.yml": "description: d\nentry: nosuchprog\ncommands: {x: {training: {lr: 1}}}"})
    assert main(["config", "lint"]) == 0
    told = capsys.readouterr().err
    assert "fdl.yml:2: entry: `nosuchprog` is not found on this machine" in told
    assert main(["x"]) == 1
    assert "fdl.yml:2: `nosuchprog` is not found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        ('run: echo\n    append: "a \'b"', "fdl.yml:4: commands.x.append"),
        ("run: echo 'a", "fdl.yml:3: commands.x.run"),
        ("run: echo )", "fdl.yml:3: commands.x.run"),
    ],
)
def test_a_line_that_no_shell_can_read_is_refused_with_its_place(project, capsys, spec, place):
    project({"fdl.yml": f"commands:\n  x:\n    {spec}\n"})
    for words in (["config", "lint"], ["x"]):
        assert main(words) == 1
        assert f"{place}: the shell cannot read" in capsys.readouterr().err


def test_without_what_is_appended_it_does_not_count(project, capfd):
    project({"fdl.yml": 'commands:\n  x:\n    run: echo said\n    append: "a \'b"\n'})
    assert main(["x", "--no-append"]) == 0
    assert capfd.readouterr().out == "said\n"


@pytest.mark.parametrize("line", ["# don't\necho a", "cat <<'E'\nit's\nE", "echo $(echo ')')"])
def test_whatever_a_shell_can_read_is_let_through(project, capsys, line):
    project({"fdl.yml": json.dumps({"commands": {"x": {"run": line}}})})
    assert main(["config", "lint"]) == 0


@pytest.mark.parametrize(
    "text", ["docker: nosuch\nentry: x\n", "# a\ncommands: {x: {run: echo,\n   docker: nosuch}}\n"]
)
def test_a_service_that_no_compose_file_has_is_refused(project, capsys, stand_in, text):
    stand_in("docker")
    project({"fdl.yml": text, "docker-compose.yml": COMPOSE})
    assert main(["config", "lint"]) == 1
    told = capsys.readouterr().err
    assert "docker-compose.yml has no service 'nosuch'. It has dev." in told
    assert "fdl.yml:1: docker:" in told or "fdl.yml:3: commands.x.docker:" in told
    if "commands" in text:
        assert main(["x"]) == 1
        assert "has no service 'nosuch'" in capsys.readouterr().err


@pytest.mark.parametrize("more", [{"docker-compose.override.yml": "services: {nosuch: {image: x}}"}, {}])
def test_a_service_that_may_stand_elsewhere_is_a_note(project, capsys, more):
    compose = COMPOSE if more else f"include: [other.yml]\n{COMPOSE}"
    project({"fdl.yml": "commands: {x: {run: echo, docker: nosuch}}", "docker-compose.yml": compose, **more})
    assert main(["config", "lint"]) == 0
    assert "has no service 'nosuch'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("''", 1, "this is no name"),
        ("<<", 1, "merge keys are not supported"),
        ("-x", 0, "only `fdl run -x` reaches it"),
        ("a b", 0, "has to be quoted each time: fdl 'a b'"),
        ("config", 0, "only `fdl run config` reaches this one"),
        ("version", 0, "only `fdl run version` reaches this one"),
    ],
)
def test_a_name_that_is_hard_to_reach_is_named(project, capsys, name, code, message):
    project({"fdl.yml": f"commands:\n  {name}:\n    run: echo\n"})
    assert main(["config", "lint"]) == code
    told = capsys.readouterr().err
    assert "fdl.yml:3: command `" in told
    assert message in told


def test_names_of_inner_manifests_and_the_name_run_hide_nothing(project, capsys):
    project(
        {
            "fdl.yml": "commands: {run: {run: echo}, sub: }",
            "sub/fdl.yml": "commands: {config: {run: echo}, version: {run: echo}}",
        }
    )
    assert main(["config", "lint"]) == 0
    assert capsys.readouterr().err == ""


def test_a_fault_of_the_manifest_that_hides_the_command_is_the_one_that_is_told(project, capsys):
    project({"fdl.yml": "description: d\ncommands: [x]"})
    for words in (["run", "x"], ["x"]):
        assert main(words) == 1
        assert "fdl.yml:2: commands: [x] cannot stand here. Write a map." in capsys.readouterr().err


def test_a_preset_without_an_entry_is_told_what_is_missing_and_where(project, capsys):
    project({"fdl.yml": "commands:\n  x:\n    training: {lr: 1}\n"})
    assert main(["config", "lint"]) == 1
    assert "fdl.yml:3: command `x`: a preset needs an `entry:` in " in capsys.readouterr().err
    assert main(["run", "x"]) == 1
    assert "Write `entry:` there" in capsys.readouterr().err


def test_an_option_that_no_command_line_can_have_is_named_by_its_key(project, capsys):
    project({"fdl.yml": "entry: echo\ncommands:\n  x:\n    options: {a: {b: c}, d: [[1, 2]], e: [1], f: }\n"})
    assert main(["config", "lint"]) == 1
    told = capsys.readouterr().err
    assert "fdl.yml:4: commands.x.options.a: {b: c} cannot stand here. Write a value or a list" in told
    assert "fdl.yml:4: commands.x.options.d: [[1, 2]] cannot stand here." in told
    assert "options.e" not in told
    assert "options.f" not in told


def test_every_finding_names_its_file_by_the_whole_path(project, capsys):
    schema = "entry: echo\nschema: {options: {lr: {type: float}}, strict: true}"
    folder = project(
        {"fdl.yml": f"{schema}\ncommands:\n  x: {{training: {{epochs: 1}}}}\n  y: {{nokey: 1}}\n"}
    )
    assert main(["config", "lint", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 2
    assert all(one.startswith(f"{folder}/fdl.yml:") for one in found)
