"""Nested dataclasses, tuples and dicts on the command line and in the manifest."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from flodl.cli import Args, argument, main, option
from flodl.cli.args.schema import from_json
from flodl.cli.completion import words_after
from flodl.cli.manifest.loader import load
from flodl.core import ArgsError
from flodl.core.environment import resolved_config
from flodl.train.record.user_settings import given_settings


@dataclass
class Optimizer:
    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = option(1e-3, help="The learning rate.", env="OPTIMIZER_LR")
    betas: tuple[float, float] = (0.9, 0.999)
    nesterov: bool = True
    weight_decay: float | None = None

    def __post_init__(self):
        if self.lr <= 0:
            raise ValueError(f"lr is {self.lr}. It must be above 0.")


@dataclass
class Ema:
    decay: float = 0.99


@dataclass
class Train:
    epochs: int = 3
    optimizer: Optimizer = field(default_factory=lambda: Optimizer(lr=2e-3))
    ema: Ema | None = None
    weights: dict[str, float] = field(default_factory=lambda: {"cat": 1.0})
    size: tuple[int, int] | None = None
    output: Path = Path("runs")


def parse(*words):
    return Args(Train).parse(words)


def error_of(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        parse(*words)
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()[0]


def test_an_option_without_its_group_is_suggested_with_it(capsys):
    assert error_of(capsys, "--lr", "0.1") == "error: No such option '--lr'. Did you mean '--optimizer.lr'?"
    assert "'--optimizer.weight-decay'" in error_of(capsys, "--weight-decay", "0.1")


def test_nested_fields_are_options_with_dotted_names_and_the_defaults_of_the_instance():
    assert parse() == Train()
    assert parse("--optimizer.lr", "0.1", "--no-optimizer.nesterov").optimizer == Optimizer(
        lr=0.1, nesterov=False
    )
    assert parse("--optimizer.weight-decay", "0.5").optimizer == Optimizer(lr=2e-3, weight_decay=0.5)


def test_an_optional_dataclass_is_none_until_one_of_its_values_is_given():
    assert parse().ema is None
    assert "ema.decay" not in resolved_config()
    assert parse("--ema.decay", "0.5").ema == Ema(0.5)
    assert resolved_config()["ema.decay"] == {"value": 0.5, "origin": "--ema.decay"}


def test_a_tuple_has_commas_and_a_fixed_number_of_items(capsys):
    assert parse("--optimizer.betas", "0.5,0.6", "--size", "-3,4").size == (-3, 4)
    assert error_of(capsys, "--optimizer.betas", "0.5") == (
        "error: Invalid value for '--optimizer.betas': '0.5' has 1 value. "
        "Expected 2 values, separated by commas: FLOAT,FLOAT."
    )
    assert "'x' is not a valid float" in error_of(capsys, "--optimizer.betas", "0.5,x")


def test_a_dict_is_repeated_or_comma_separated_and_replaces_the_default(capsys):
    assert parse().weights == {"cat": 1.0}
    assert parse("--weights", "dog=2", "--weights", "fish=3,ant=4").weights == {"dog": 2, "fish": 3, "ant": 4}
    assert "'dog' is not a pair. Write key=value." in error_of(capsys, "--weights", "dog")
    assert "the key 'a' is given twice" in error_of(capsys, "--weights", "a=1,a=2")


def test_errors_of_nested_values_have_the_dotted_path(capsys):
    assert "'--optimizer.name': 'adam' is not one of" in error_of(capsys, "--optimizer.name", "adam")
    assert error_of(capsys, "--optimizer.lr", "-1") == "error: optimizer: lr is -1.0. It must be above 0."


def test_an_environment_variable_sets_a_nested_value(monkeypatch):
    monkeypatch.setenv("OPTIMIZER_LR", "0.25")
    assert parse().optimizer.lr == 0.25
    assert resolved_config()["optimizer.lr"]["origin"] == "$OPTIMIZER_LR"
    assert Args(Train).from_dict({}) == Train()


def test_the_help_shows_nested_defaults(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    shown = capsys.readouterr().out
    assert "--optimizer.lr FLOAT            The learning rate." in shown
    assert "--optimizer.betas FLOAT,FLOAT   [default: 0.9, 0.999]" in shown
    assert "--weights KEY=FLOAT             (repeat or comma-separate)  [default:\n" in shown
    assert "cat=1.0]" in shown


def test_the_schema_describes_nested_options():
    options = Args(Train).schema()["options"]
    assert options["optimizer.betas"] == {"type": "tuple[float,float]", "default": "0.9,0.999"}
    assert options["weights"] == {"type": "dict[float]", "default": "cat=1.0"}
    assert options["ema.decay"] == {"type": "float"}
    parsed = from_json(json.loads(json.dumps(Args(Train).schema()))).options
    assert parsed["optimizer.betas"].item_types == ("float", "float")


@pytest.mark.parametrize(
    "words", [[], ["--ema.decay", "0.5"], ["--size", "1,2", "--weights", "a=1", "--no-optimizer.nesterov"]]
)
def test_the_record_of_a_run_builds_the_same_settings_again(words):
    settings = parse(*words)
    record = json.loads(json.dumps(given_settings(settings)))
    assert Args(Train).from_dict(record) == settings


def test_from_dict_rejects_what_the_command_line_would():
    with pytest.raises(ArgsError, match=r"there is no setting 'optimizer.lrr'. Did you mean 'optimizer.lr'"):
        Args(Train).from_dict({"optimizer": {"lrr": 1}})
    with pytest.raises(ArgsError, match=r"'--optimizer.lr' .*'x' is not a valid float"):
        Args(Train).from_dict({"optimizer": {"lr": "x"}})


@dataclass
class Endless:
    inner: "Endless | None" = None


@dataclass
class Positional:
    data: str = argument()


@dataclass
class WithPositional:
    inner: Positional | None = None


@dataclass
class WrongTuple:
    betas: tuple[float, float] = (0.9,)  # type: ignore[assignment]


@dataclass
class DictOfLists:
    names: dict[str, list[int]] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Endless, "at 'Endless.inner': Endless contains itself"),
        (WithPositional, "at 'WithPositional.inner.data': a nested field cannot be a positional argument"),
        (WrongTuple, r"at 'WrongTuple.betas': the default \(0.9,\) is not a tuple of 2 values"),
        (DictOfLists, "at 'DictOfLists.names': dict.* cannot be parsed from a command line"),
    ],
)
def test_a_mistake_in_a_nested_definition_names_the_path(wrong, message):
    with pytest.raises(ArgsError, match=message):
        Args(wrong)


MANIFEST = """
    entry: tool
    schema:
      strict: true
      options:
        optimizer.lr: {type: float, default: 0.1}
        optimizer.betas: {type: "tuple[float,float]"}
        weights: {type: "dict[float]"}
        epochs: {type: int}
        output: {type: path}
    training:
      epochs: 4
      optimizer: {lr: 1e-2, betas: [0.8, 0.9]}
    commands:
      run: {training: {optimizer: {lr: 3e-2}}, options: {weights: {cat: 2, dog: 0.5}}}
"""


def plan(capsys, *words):
    assert main(["run", "--dry-run", "--json", "run", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_maps_of_a_manifest_are_nested_options_and_a_preset_overrides_single_values(project, capsys):
    project({"fdl.yml": MANIFEST, "tool": ""})
    found = plan(capsys)
    assert found["command"][1:] == [
        *("--epochs", "4", "--optimizer.betas", "0.8,0.9", "--optimizer.lr", "0.03"),
        *("--weights", "cat=2,dog=0.5"),
    ]
    values = found["values"]
    assert values["optimizer.lr"] == {"value": 0.03, "origin": "fdl.yml:14"}
    assert values["optimizer.betas"] == {"value": [0.8, 0.9], "origin": "fdl.yml:12"}
    assert values["weights"]["value"] == {"cat": 2, "dog": 0.5}
    values = plan(capsys, "--weights", "fish=1", "--weights", "ant=2", "--optimizer.lr=1")["values"]
    assert values["weights"] == {"value": {"fish": 1.0, "ant": 2.0}, "origin": "--weights"}
    assert values["optimizer.lr"] == {"value": 1.0, "origin": "--optimizer.lr"}


def test_config_show_has_the_origin_of_each_nested_value(project, capsys):
    project({"fdl.yml": MANIFEST, "fdl.ci.yml": "training: {optimizer: {lr: 1}}"})
    assert main(["config", "show", "ci", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["training.optimizer.lr"] == {"value": 1, "origin": "fdl.ci.yml:1"}
    assert shown["training.optimizer.betas"]["origin"] == "fdl.yml:12"


@pytest.mark.parametrize(
    ("nested", "message"),
    [
        ("optimizer: {lr: fast}", "fdl.yml:10: training.optimizer.lr: 'fast' is not a valid float."),
        ("optimizer: {lrr: 1}", "training.optimizer.lrr: the entry has no option --optimizer.lrr. Did you"),
        (
            "optimizer: {betas: [1]}",
            "training.optimizer.betas: --optimizer.betas takes 2 values (FLOAT,FLOAT)",
        ),
        ("weights: {cat: x}", "training.weights: cat: 'x' is not a valid float."),
        ("optimizer: {lr: {a: 1}}", "--optimizer.lr.a"),
        ("epoch: 1", "training.epoch: unknown key. Did you mean 'epochs'?"),
        ("hidden: 64", "If --hidden is an option of the program, write it under `options:` of a command."),
    ],
)
def test_mistakes_in_nested_values_are_reported_with_their_path(project, capsys, nested, message):
    head, _, _ = MANIFEST.partition("    training:")
    project(
        {"fdl.yml": f"{head}    training: {{{nested}}}\n    commands: {{run: {{options: {{}}}}}}", "tool": ""}
    )
    assert main(["config", "lint"]) == 1
    assert message in capsys.readouterr().err


def test_nested_options_are_completed(project):
    root = project({"fdl.yml": MANIFEST})
    found = {item.value for item in words_after(load(root / "fdl.yml"), ("run",), "--optimizer.")}
    assert found == {"--optimizer.lr", "--optimizer.betas"}


def test_a_sweep_goes_over_nested_names(project, capsys):
    sweep = "    sweep: {over: {optimizer: {lr: [0.1, 0.2]}}}\n"
    project({"fdl.yml": MANIFEST.replace("    training:", f"{sweep}    training:", 1), "tool": ""})
    assert main(["sweep", "--out", "s", "--over", "epochs=1", "--dry-run", "run"]) == 0
    shown = capsys.readouterr().out
    assert "optimizer.lr: 0.1, 0.2  # fdl.yml:10" in shown
    assert shown.splitlines()[-1].endswith("--optimizer.lr 0.2 --epochs 1 --output s/002")
    assert main(["sweep", "--out", "s", "--over", "optimizer.lr=1e-3", "--dry-run", "run"]) == 0
    assert "optimizer.lr: 0.001  # --over" in capsys.readouterr().out
