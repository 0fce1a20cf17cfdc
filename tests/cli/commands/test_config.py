"""`fdl config`: every value with its origin, and lint."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl.cli import main

FILES = {
    "base.yml": "description: Shared\n",
    "fdl.yml": """
        inherit-from: base.yml
        commands:
          hello:
            run: echo hello  # words
            append: [wrong
        """.replace("    append: [wrong\n", ""),
    "fdl.ci.yml": "description: In CI\ncommands: {hello: {docker: dev}}",
}


def test_every_value_is_shown_with_its_file_and_line(project, capsys):
    project(FILES)
    assert main(["config", "show"]) == 0
    assert capsys.readouterr().out == (
        "description: Shared  # base.yml:1\ncommands:\n  hello:\n    run: echo hello  # fdl.yml:4\n"
    )


@pytest.mark.parametrize(
    ("words", "source"),
    [
        (["config", "show", "ci"], "config show"),
        (["--env", "ci", "config", "show"], "--env"),
        (["ci", "config", "show"], "the first word"),
    ],
)
def test_an_overlay_is_shown_with_its_source(project, capsys, words, source):
    project(FILES)
    assert main(words) == 0
    assert capsys.readouterr().out == (
        f"# environment: ci ({source})\n"
        "description: In CI   # fdl.ci.yml:1\n"
        "commands:\n"
        "  hello:\n"
        "    run: echo hello  # fdl.yml:4\n"
        "    docker: dev      # fdl.ci.yml:2\n"
    )


def test_the_argument_overrides_the_variable(project, capsys, monkeypatch):
    project({**FILES, "fdl.prod.yml": "description: Live"})
    monkeypatch.setenv("FDL_ENV", "ci")
    assert main(["config", "show", "prod"]) == 0
    assert "description: Live    # fdl.prod.yml:1" in capsys.readouterr().out


def test_json_output_maps_paths_to_values_and_origins(project, capsys):
    project(FILES)
    assert main(["config", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "description": {"value": "Shared", "origin": "base.yml:1"},
        "commands.hello.run": {"value": "echo hello", "origin": "fdl.yml:4"},
    }


def test_origins_are_relative_to_the_manifest_also_from_a_subfolder(project, capsys, monkeypatch):
    root = project({**FILES, "deep/x": ""})
    monkeypatch.chdir(root / "deep")
    assert main(["config", "show"]) == 0
    assert "# fdl.yml:4" in capsys.readouterr().out


def test_an_unknown_key_is_shown_and_reported(project, capsys):
    project({"fdl.yml": "descripton: x\ncommands:\n  a: {rnu: y}"})
    assert main(["config", "show"]) == 1
    shown = capsys.readouterr()
    assert "descripton: x  # fdl.yml:1" in shown.out
    first, second = shown.err.splitlines()
    assert first.endswith("fdl.yml:1: descripton: unknown key. Did you mean 'description'?")
    assert second.endswith("fdl.yml:3: commands.a.rnu: unknown key. Did you mean 'run'?")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no fdl.yml found"),
        ({"fdl.yml": "a: ["}, "fdl.yml:1: "),
        ({"fdl.yml": "inherit-from: x"}, "cannot resolve inherit-from target"),
    ],
)
def test_an_invalid_manifest_is_an_error(project, capsys, files, message):
    project(files)
    assert main(["config", "show"]) == 1
    assert message in capsys.readouterr().err


def test_a_missing_overlay_is_an_error(project, capsys):
    project(FILES)
    assert main(["config", "show", "prod"]) == 1
    assert "there is no" in capsys.readouterr().err


def test_lint_finds_everything_at_once(project, capsys):
    root = project(
        {
            "fdl.yml": "commands: {both: {run: a, path: b}, gone: , train: , typo: {rn: x}}",
            "fdl.ci.yml": "description: [x]",
            "train/fdl.yml": """
                entry: tool
                schema: {options: {mode: {type: string, choices: [a, b]}}, strict: true}
                commands:
                  one: {options: {mode: c}}
                  two: {options: {mood: a}}
                  three: {options: {mode: a}}
            """,
        }
    )
    assert main(["config", "lint", "--json"]) == 1
    problems = [problem.replace(f"{root}/", "") for problem in json.loads(capsys.readouterr().out)]
    assert problems == [
        "fdl.yml:1: command `both`: it has both `run:` and `path:`. Keep one of them.",
        "fdl.yml:1: command `gone`: no fdl.yml found in gone. "
        "Create one with an `entry:`, or give the command a `run:`.",
        "train/fdl.yml:4: options.mode: 'c' is not allowed. Choose one of a, b.",
        "train/fdl.yml:5: options.mood: the entry has no option --mood. Did you mean 'mode'?",
        "fdl.yml:1: commands.typo.rn: unknown key. Did you mean 'run'?",
        "fdl.ci.yml:1: description: [x] is not allowed here. Expected text.",
    ]


def test_lint_says_how_a_preset_without_values_is_written(project, capsys):
    files = {"fdl.yml": "entry: tool\ncommands:\n  base: {description: The defaults}\n"}
    project(files)
    assert main(["config", "lint"]) == 1
    assert "start the `entry:` with its defaults, add `training: {}`" in capsys.readouterr().err
    files["fdl.yml"] = files["fdl.yml"].replace("defaults}", "defaults, training: {}}")
    project(files)
    assert main(["config", "lint"]) == 0


def test_lint_reports_a_value_once(project, capsys):
    root = project(
        {
            "fdl.yml": """
                entry: tool
                schema: {options: {lr: {type: float}, epochs: {type: int}}}
                training: {epochs: many}
                commands:
                  quick: {training: {epochs: few}, options: {lr: fast}}
            """
        }
    )
    assert main(["config", "lint", "--json"]) == 1
    problems = [problem.replace(f"{root}/", "") for problem in json.loads(capsys.readouterr().out)]
    assert problems == [
        "fdl.yml:3: training.epochs: 'many' is not allowed here. Expected an integer of at least 1.",
        "fdl.yml:5: options.lr: 'fast' is not a valid float.",
        "fdl.yml:5: commands.quick.training.epochs: 'few' is not allowed here. "
        "Expected an integer of at least 1.",
    ]


def test_lint_accepts_a_valid_manifest(project, capsys):
    project(FILES)
    assert main(["config", "lint"]) == 0
    assert "no problems found" in capsys.readouterr().out


def test_lint_terminates_on_manifests_that_name_each_other(project, capsys):
    project({"fdl.yml": "commands: {a: }", "a/fdl.yml": "commands: {up: {path: ..}, self: {path: .}}"})
    assert main(["config", "lint"]) == 0


@pytest.mark.parametrize("words", [["config"], ["config", "-h"], ["schema"], ["schema", "--help"]])
def test_a_group_without_a_command_prints_its_help(capsys, words):
    assert main(words) == 0
    assert f"Usage: fdl {words[0]}" in capsys.readouterr().out


SCRIPT = """
    from dataclasses import dataclass
    from flodl.cli import Args

    @dataclass
    class Train:
        lr: float = 1.0

    if __name__ == "__main__":
        Args(Train).parse()
"""


def test_lint_asks_the_entry_in_a_fresh_clone_and_after_a_change(project, capsys):
    root = project({"fdl.yml": "entry: python t.py\ncommands: {p: {options: {rate: 1}}}", "t.py": SCRIPT})
    assert main(["config", "lint"]) == 1
    assert "fdl.yml:2: options.rate: the entry has no option --rate." in capsys.readouterr().err
    (root / "t.py").write_text((root / "t.py").read_text().replace("lr:", "rate:"))
    assert main(["config", "lint"]) == 0


def test_lint_notes_what_it_could_not_check(project, capsys):
    project({"fdl.yml": "entry: tool\ncommands: {p: {options: {rate: 1}}}"})
    assert main(["config", "lint", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == []
    assert "note: " in shown.err
    assert "are not checked, because its schema is not known" in shown.err


def test_lint_reports_every_unknown_key_and_every_wrong_value(project, capsys):
    project({"fdl.yml": "descripton: x\nentri: y\ntraining: {lr: a, epochs: b, sed: 1}\noutput: {dir: [1]}"})
    assert main(["config", "lint", "--json"]) == 1
    found = [problem.partition(": ")[2].partition(":")[0] for problem in json.loads(capsys.readouterr().out)]
    assert found == ["descripton", "entri", "training.sed", "training.lr", "training.epochs", "output.dir"]


def test_lint_reports_options_and_values_of_a_sweep_that_the_entry_does_not_accept(project, capsys):
    folder = project(
        {
            "train.py": SCRIPT,
            "fdl.yml": """
                entry: python train.py
                sweep:
                  runs: 3
                  over:
                    lrr: [0.1, 0.2]
                    lr: [abc, 0.1]
                """,
        }
    )
    assert main(["config", "lint"]) == 1
    err = capsys.readouterr().err
    assert f"error: {folder}/fdl.yml:5: sweep.over.lrr: the entry has no option --lrr. Did you mean" in err
    assert f"error: {folder}/fdl.yml:6: sweep.over.lr: 'abc' is not a valid float." in err
    assert f"error: {folder}/fdl.yml:3: the grid has 4 runs, but 3 were requested." in err


def test_lint_leaves_the_sweep_of_a_script_to_the_script(project, capsys):
    project(
        {
            "train.py": SCRIPT,
            "fdl.yml": "entry: python train.py\nsweep: {over: {x: [1, 2]}}\ncommands: {run: {run: ./try.sh}}",
        }
    )
    assert main(["config", "lint"]) == 0


def test_lint_reports_a_missing_script_without_a_suffix(project, capsys):
    folder = project({"fdl.yml": "entry: python train\n"})
    assert main(["config", "lint"]) == 1
    assert f"fdl.yml:1: entry: there is no train in {folder}." in capsys.readouterr().err


def test_lint_notes_a_manifest_that_is_ignored_in_favour_of_another(project, capsys):
    project({"fdl.yml": "description: a", "fdl.yaml": "description: b"})
    assert main(["config", "lint"]) == 0
    assert (
        "fdl.yml is ignored, because fdl.yaml in the same folder takes precedence." in capsys.readouterr().err
    )


def test_a_null_folder_command_survives_inheritance(project, capsys):
    project(
        {
            "base.yml": "commands: {clean: {run: rm}, old: {run: x}}",
            "fdl.yml": "inherit-from: base.yml\ncommands:\n  train:\n  old:\n",
            "train/fdl.yml": "description: inner",
        }
    )
    assert main(["config", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "commands.clean.run": {"value": "rm", "origin": "base.yml:1"},
        "commands.train": {"value": None, "origin": "fdl.yml:3"},
    }
    assert main(["train", "--help"]) == 0
    assert "inner" in capsys.readouterr().out
    assert main(["config", "lint"]) == 0
    assert "fdl.yml:4: commands.old: the null deletes the value from" in capsys.readouterr().err


def test_a_map_that_deletions_emptied_is_not_shown(project, capsys):
    project({"fdl.yml": "description: x\ncommands: {a: {run: x}}", "fdl.ci.yml": "commands: {a: }"})
    assert main(["config", "show", "ci", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["description"]


def test_inheriting_from_a_folder_is_an_error(project, capsys):
    project({"fdl.yml": "inherit-from: ."})
    assert main(["config", "show"]) == 1
    assert "fdl.yml:1: inherit-from must name a file, but '.' is the folder" in capsys.readouterr().err


def test_the_source_of_a_missing_environment_is_named(project, capsys, monkeypatch):
    project({"fdl.yml": ""})
    monkeypatch.setenv("FDL_ENV", "prod")
    for words in (["config", "lint"], ["config", "show"]):
        assert main(words) == 1
        assert "FDL_ENV asks for the environment 'prod'" in capsys.readouterr().err


def test_a_wrong_encoding_is_refused_with_its_line(project, capsys):
    root = project({"fdl.yml": ""})
    (root / "fdl.yml").write_bytes("description: x\ncommands: {a: {run: caf\xe9}}".encode("latin-1"))
    assert main(["config", "show"]) == 1
    assert "fdl.yml:2: the file is not valid UTF-8" in capsys.readouterr().err


def test_a_merge_key_is_refused_with_advice(project, capsys):
    project({"fdl.yml": "training:\n  <<: {lr: 1}\n"})
    assert main(["config", "lint"]) == 1
    assert "fdl.yml:2: training.<<: unknown key. Merge keys are not supported" in capsys.readouterr().err


def test_a_merge_key_in_nested_options_is_refused_with_advice(project, capsys):
    project({"fdl.yml": "training:\n  optimizer: {<<: {lr: 1}}\n"})
    assert main(["config", "lint"]) == 1
    assert "fdl.yml:2: training.optimizer.<<: unknown key. Merge keys" in capsys.readouterr().err


NAMES = [
    "commands",
    "run",
    "path",
    "options",
    "entry",
    "description",
    "inherit-from",
    "training",
    "lr",
    "docker",
]
WORDS = st.sampled_from(
    [*NAMES, "schema", "args", "type", "choices", "append", "ddp", "speed_hint", "a", "b"]
)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), WORDS, st.lists(WORDS, max_size=2))
DOCUMENTS = st.recursive(VALUES, lambda inner: st.dictionaries(WORDS, inner, max_size=3), max_leaves=12)
SPECS = st.dictionaries(
    st.sampled_from(["run", "append", "path", "docker", "options", "ddp", "training"]), DOCUMENTS
)
PARAMETERS = st.dictionaries(
    st.sampled_from(["name", "type", "choices", "default", "short", "required"]), VALUES
)
SCHEMAS = st.fixed_dictionaries(
    {}, optional={"args": st.lists(PARAMETERS, max_size=2), "options": st.dictionaries(WORDS, PARAMETERS)}
)
NEARLY_RIGHT = st.fixed_dictionaries(
    {"commands": st.fixed_dictionaries({"a": SPECS})},
    optional={"entry": WORDS, "schema": SCHEMAS, "training": DOCUMENTS, "description": VALUES},
)


@settings(deadline=None, max_examples=40)
@given(
    document=st.one_of(st.dictionaries(WORDS, DOCUMENTS, max_size=4), NEARLY_RIGHT),
    words=st.sampled_from(
        [
            ["--help"],
            ["config", "show"],
            ["config", "lint"],
            ["a"],
            ["a", "--help"],
            ["run", "--dry-run", "a", "b"],
        ]
    ),
)
def test_no_manifest_causes_a_traceback(document, words, tmp_path_factory):
    import os

    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "fdl.json").write_text(json.dumps(document))
    # Never run a fuzzed command.
    words = words if words != ["a"] else ["run", "--dry-run", "a"]
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert main(words) in (0, 1, 2)
    finally:
        os.chdir(before)


@pytest.mark.parametrize("value", ['"5"', "5"])
@pytest.mark.parametrize(
    "where", ["training: {{epochs: {}}}", "commands: {{a: {{training: {{epochs: {}}}}}}}"]
)
def test_lint_and_a_dry_run_agree_on_a_number_in_quotes(project, capsys, value, where):
    commands = "" if "commands" in where else "commands: {a: {training: {seed: 1}}}\n"
    project({"fdl.yml": f"entry: echo\nschema: {{}}\n{commands}{where.format(value)}\n"})
    codes, errors = [], []
    for words in (["config", "lint"], ["run", "--dry-run", "a"]):
        codes.append(main(words))
        errors.append(capsys.readouterr().err)
    quoted = value != "5"
    assert codes == [quoted, quoted]
    assert [("'5' is not allowed here" in error, "Remove the quotes" in error) for error in errors] == [
        (quoted, quoted)
    ] * 2


def test_lint_reports_a_number_in_quotes(project, capsys):
    settings = 'training: {epochs: "5", lr: "1e-3"}\noutput: {timeline: "true"}\n'
    project({"fdl.yml": f"entry: echo\nschema: {{}}\n{settings}"})
    assert main(["config", "lint"]) == 1
    errors = capsys.readouterr().err
    assert (
        "training.epochs: '5' is not allowed here. Expected an integer of at least 1. Remove the quotes."
        in errors
    )
    assert (
        "training.lr: '1e-3' is not allowed here. Expected a number of at least 0. Remove the quotes."
        in errors
    )
    assert "output.timeline: 'true' is not allowed here. Expected true or false. Remove the quotes." in errors


def test_an_option_at_the_top_level_names_the_command_that_it_belongs_in(project, capsys):
    project({"fdl.yml": "entry: python train.py\noptions: {hidden: 8}", "train.py": ""})
    assert main(["config", "lint"]) == 1
    told = "options: unknown key. `options:` belongs in a command: write it below `commands:` and the name"
    assert told in capsys.readouterr().err
