"""Manifests, overlays, parents and schemas with any content: a correct answer or one of our errors."""

import json

import pytest

from flodl.cli import main
from flodl.cli.args.schema import from_json
from flodl.core.errors import ArgsError

FILES = {
    "fdl.yml": """\
description: Points on a circle
inherit-from: base.yml
commands:
  clean: {run: rm -rf runs, append: "-- x"}
  train:
    description: Train the classifier
  here: {options: {lr: 1e-3, flags: [a, b], deep: true}, training: {epochs: 3}}
entry: tool train.txt
training: {epochs: 20, lr: 1e-2, seed: 1}
output: {dir: runs, monitor: true}
ddp: {policy: cadence, speed_hint: {slow_rank: 1, ratio: 2.5}, partition_ratios: [1, 2]}
schema:
  args: [{name: stage, type: string, choices: [first, second], required: false}]
  options:
    mode: {type: string, choices: [fast, slow], description: How fast, short: m}
    lr: {type: float, default: 0.1, env: FUZZ_LR}
    epochs: {type: int}
""",
    "base.yml": "commands: {other: &a {run: echo}, same: *a}\narg-name: recipe\n",
    "fdl.night.yml": "training: {epochs: 200}\ncommands: {clean: }\n",
    "train/fdl.yml": "entry: tool\narg-name: recipe\ncommands: {quick: {training: {epochs: 2}}}\n",
}
COMMANDS = [
    ["--help"],
    ["config", "show"],
    ["config", "show", "--json"],
    ["--env", "night", "config", "show"],
    ["config", "lint"],
    ["here", "--help"],
    ["train", "--help"],
    ["run", "--dry-run", "here"],
    ["run", "--dry-run", "here", "second", "--lr", "1e999"],
    ["run", "--dry-run", "clean", "--", "*"],
    ["run", "--dry-run", "train", "quick"],
    ["schema", "list"],
]
NASTY = [
    "[" * 3000, "{a: " * 500, "- " * 500, "9" * 5000, "0x" + "f" * 5000, "1e999", "-1e-999", ".inf", ".nan",
    "2024-01-01", "<<: *a", "&a ", "*a", "*undefined", "!!int ", "!!python/object:os.system ", "!!binary ",
    "\0", "\x1b[31m", "\u2028", "\ufeff", "\t", "\r", "---\n", "...\n", "%YAML 1.1\n", "? ", ": ", "|\n",
    ">\n", "'", '"', "#", "null", "~", "true", "yes", "[]", "{}", "inherit-from: fdl.yml\n",
    "inherit-from: /dev/zero\n", "path: ..\n", "run: 'x\n", "entry: '\n",
    "docker: x\n", "commands: []\n", "commands: {'': {run: x}}\n",
    "commands: {-x: {run: y}}\n", "x" * 5000, "\\x00", '"\\ud800"', "\udc80",
]  # fmt: skip


def mutate(rng, text):
    """Return the text with a few random changes, as bytes."""
    data = text.encode("utf-8", "surrogateescape")
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randint(0, len(data)), rng.choice([0, 1, 1, 5, 40])
        insert = rng.choice(
            [
                b"",
                bytes([rng.randrange(256)]),
                rng.choice(NASTY).encode("utf-8", "surrogateescape" if rng.random() < 0.5 else "replace"),
                data[at : at + rng.randint(1, 60)] * rng.choice([1, 2, 50]),
                b"\n" + b" " * rng.randint(0, 8),
            ]
        )
        data = data[:at] + insert + data[at + length :]
    return data


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLODL_RESOLVED_CONFIG", "")
    monkeypatch.delenv("FDL_ENV", raising=False)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_mutated_project_gives_an_answer_or_an_error(project, fuzz, capsys):
    def check(rng):
        changed = rng.choice([*FILES, "fdl.yml"])
        (project / changed).write_bytes(mutate(rng, FILES[changed]))
        for words in rng.sample(COMMANDS, 3):
            code = main(words)
            shown = capsys.readouterr()
            assert code in (0, 1, 2), words
            assert "Traceback" not in shown.err
            if code == 1 and words[0] != "config":
                assert shown.err.startswith(("error: ", "note: ")), shown.err
        (project / changed).write_text(FILES[changed])

    fuzz(check)


def value(rng, depth=0):
    """Return any JSON value, with some of the keys of a schema."""
    keys = ["args", "options", "strict", "name", "type", "description", "required", "variadic", "default"]
    keys += ["choices", "completer", "short", "env", "bare", "x", ""]
    scalars = [
        None,
        True,
        False,
        0,
        -1,
        2**70,
        1.5,
        float("inf"),
        "",
        "int",
        "list[float]",
        "bool",
        "path",
        "-x",
    ]
    kind = rng.random()
    if depth > 4 or kind < 0.4:
        return rng.choice(scalars)
    if kind < 0.55:
        return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice(keys): value(rng, depth + 1) for _ in range(rng.randint(0, 4))}


def test_any_schema_is_parsed_or_refused(project, fuzz, capsys):
    def check(rng):
        schema = value(rng)
        if rng.random() < 0.7:
            schema = {
                "args": [value(rng, 3)],
                "options": {"lr": value(rng, 3), rng.choice("abc"): value(rng, 3)},
            }
        try:
            parsed = from_json(schema)
        except ArgsError:
            return
        text = f"entry: tool\nschema: {json.dumps(schema)}\ncommands: {{p: {{options: {{lr: 1}}}}}}\n"
        (project / "fdl.yml").write_text(text)
        assert parsed.options is not None
        for words in (["p", "--help"], ["run", "--dry-run", "p", "--lr", "2"]):
            assert main(words) in (0, 1, 2)
            assert "Traceback" not in capsys.readouterr().err

    fuzz(check)
