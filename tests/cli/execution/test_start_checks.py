"""What can never start is an error of lint and of the run. What may fail to start is a note."""

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
def test_an_entry_that_can_never_start_is_refused_by_lint_and_run(project, capsys, text, words, message):
    project({"fdl.yml": f"description: d\n{text}\ncommands: {{x: {{training: {{lr: 1}}}}}}\n"})
    assert main(["config", "lint"]) == 1
    assert message in capsys.readouterr().err
    assert main(words) == 1
    assert message in capsys.readouterr().err


def test_an_empty_entry_is_named_with_its_line(project, capsys):
    project({"fdl.yml": 'description: d\nentry: ""'})
    assert main(["config", "lint"]) == 1
    assert "fdl.yml:2: entry: it is empty." in capsys.readouterr().err


def test_a_missing_program_is_a_note_in_lint_and_an_error_when_it_runs(project, capsys):
    project({"fdl.yml": "description: d\nentry: nosuchprog\ncommands: {x: {training: {lr: 1}}}"})
    assert main(["config", "lint"]) == 0
    shown = capsys.readouterr().err
    assert "fdl.yml:2: entry: `nosuchprog` was not found on this machine" in shown
    assert main(["x"]) == 1
    assert "fdl.yml:2: `nosuchprog` was not found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "origin"),
    [
        ('run: echo\n    append: "a \'b"', "fdl.yml:4: commands.x.append"),
        ("run: echo 'a", "fdl.yml:3: commands.x.run"),
        ("run: echo )", "fdl.yml:3: commands.x.run"),
    ],
)
def test_a_shell_syntax_error_is_refused_with_its_origin(project, capsys, spec, origin):
    project({"fdl.yml": f"commands:\n  x:\n    {spec}\n"})
    for words in (["config", "lint"], ["x"]):
        assert main(words) == 1
        assert f"{origin}: the shell cannot parse" in capsys.readouterr().err


def test_a_syntax_error_in_append_does_not_matter_with_no_append(project, capfd):
    project({"fdl.yml": 'commands:\n  x:\n    run: echo said\n    append: "a \'b"\n'})
    assert main(["x", "--no-append"]) == 0
    assert capfd.readouterr().out == "said\n"


@pytest.mark.parametrize("line", ["# don't\necho a", "cat <<'E'\nit's\nE", "echo $(echo ')')"])
def test_valid_shell_syntax_is_accepted(project, capsys, line):
    project({"fdl.yml": json.dumps({"commands": {"x": {"run": line}}})})
    assert main(["config", "lint"]) == 0


@pytest.mark.parametrize(
    "text", ["docker: nosuch\nentry: x\n", "# a\ncommands: {x: {run: echo,\n   docker: nosuch}}\n"]
)
def test_an_unknown_service_is_refused(project, capsys, stand_in, text):
    stand_in("docker")
    project({"fdl.yml": text, "docker-compose.yml": COMPOSE})
    assert main(["config", "lint"]) == 1
    shown = capsys.readouterr().err
    assert "docker-compose.yml has no service 'nosuch'. It has dev." in shown
    assert "fdl.yml:1: docker:" in shown or "fdl.yml:3: commands.x.docker:" in shown
    if "commands" in text:
        assert main(["x"]) == 1
        assert "has no service 'nosuch'" in capsys.readouterr().err


@pytest.mark.parametrize("more", [{"docker-compose.override.yml": "services: {nosuch: {image: x}}"}, {}])
def test_a_service_that_another_file_may_define_is_a_note(project, capsys, more):
    compose = COMPOSE if more else f"include: [other.yml]\n{COMPOSE}"
    project({"fdl.yml": "commands: {x: {run: echo, docker: nosuch}}", "docker-compose.yml": compose, **more})
    assert main(["config", "lint"]) == 0
    assert "has no service 'nosuch'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("''", 1, "the name is empty"),
        ("<<", 1, "merge keys are not supported"),
        ("-x", 0, "Only `fdl run -x` can run it"),
        ("a b", 0, "has to be quoted each time: fdl 'a b'"),
        ("version", 0, "`fdl --builtin version` runs fdl's own"),
    ],
)
def test_an_awkward_command_name_is_reported(project, capsys, name, code, message):
    project({"fdl.yml": f"commands:\n  {name}:\n    run: echo\n"})
    assert main(["config", "lint"]) == code
    shown = capsys.readouterr().err
    assert "fdl.yml:2: command `" in shown
    assert message in shown


def test_built_in_names_are_fine_in_inner_manifests_and_for_run(project, capsys):
    project(
        {
            "fdl.yml": "commands: {run: {run: echo}, sub: }",
            "sub/fdl.yml": "commands: {config: {run: echo}, version: {run: echo}}",
        }
    )
    assert main(["config", "lint"]) == 0
    assert capsys.readouterr().err == ""


def test_a_mistake_in_the_manifest_that_hides_the_command_is_reported(project, capsys):
    project({"fdl.yml": "description: d\ncommands: [x]"})
    for words in (["run", "x"], ["x"]):
        assert main(words) == 1
        assert "fdl.yml:2: commands: [x] is not allowed here. Expected a map." in capsys.readouterr().err


def test_a_preset_without_an_entry_is_an_error(project, capsys):
    project({"fdl.yml": "commands:\n  x:\n    training: {lr: 1}\n"})
    assert main(["config", "lint"]) == 1
    assert "fdl.yml:2: command `x`: a preset needs an `entry:`, but " in capsys.readouterr().err
    assert main(["run", "x"]) == 1
    assert "Add `entry:` with the program" in capsys.readouterr().err


def test_an_unknown_key_is_reported_with_its_own_line_not_that_of_the_map_below_it(project, capsys):
    project({"fdl.yml": "entry: echo\n\ntraning:\n\n\n\n  epochs: 2\nsweap:\n\n  - 1\n"})
    assert main(["config", "lint"]) == 1
    shown = capsys.readouterr().err
    assert "fdl.yml:3: traning: unknown key. Did you mean 'training'?" in shown
    assert "fdl.yml:8: sweap: unknown key. Did you mean 'sweep'?" in shown


def test_an_unsupported_option_value_is_reported_with_its_key(project, capsys):
    project({"fdl.yml": "entry: echo\ncommands:\n  x:\n    options: {a: {b: c}, d: [[1, 2]], e: [1], f: }\n"})
    assert main(["config", "lint"]) == 1
    shown = capsys.readouterr().err
    assert "options.a" not in shown  # a group of options
    assert "fdl.yml:4: commands.x.options.d: [[1, 2]] is not allowed here." in shown
    assert "options.e" not in shown
    assert "options.f" not in shown


def test_every_finding_has_the_full_path(project, capsys):
    schema = "entry: echo\nschema: {options: {lr: {type: float}}, strict: true}"
    folder = project(
        {"fdl.yml": f"{schema}\ncommands:\n  x: {{training: {{epochs: 1}}}}\n  y: {{nokey: 1}}\n"}
    )
    assert main(["config", "lint", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 2
    assert all(finding.startswith(f"{folder}/fdl.yml:") for finding in found)
