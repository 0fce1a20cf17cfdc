"""The settings of a run: flat, plain, and different if the runs differ."""

import dataclasses
import enum
import functools
import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from flodl.core import MonitorError
from flodl.monitor import Monitor
from flodl.monitor.journal import dumps
from flodl.monitor.recorder.settings import flatten_config
from flodl.monitor.snapshot import snapshot


@dataclasses.dataclass
class Schedule:
    warmup: int = 5
    decay: tuple[float, ...] = (0.1, 0.5)


class Size(NamedTuple):
    height: int
    width: int


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


def rate(step, base=1.0):
    return base / (step + 1)


def flat(**config):
    return {item["path"]: item["value"] for item in flatten_config(config, {})}


def test_the_values_of_secret_names_are_recorded_as_hashes(tmp_path):
    config = {"password": "secret123", "db.token": "secret123", "login": {"api_key": "secret123"}}
    config |= {"connect": functools.partial(print, password="secret123"), "max_tokens": 5}
    with Monitor(run_dir=tmp_path, config=config, console=False, resources=False) as monitor:
        monitor.describe({"trainer": {"secret": "secret123"}})
    assert "secret123" not in (tmp_path / "journal.jsonl").read_text()
    found = flat(**config)
    assert found["password"] == found["db.token"] == found["login.api_key"] == "hidden (fcf730b6d952)"
    assert found["max_tokens"] == 5
    assert flat(password=found["password"])["password"] == found["password"]


def test_dictionaries_dataclasses_and_lists_of_them_are_flattened_by_dotted_path():
    groups = [{"lr": 0.1, "params": ["weight"]}, {"lr": 0.2, "params": []}]
    assert flat(optimizer={"groups": groups}, schedule=Schedule(), size=Size(3, 4), empty={}) == {
        "optimizer.groups.0.lr": 0.1,
        "optimizer.groups.0.params": ["weight"],
        "optimizer.groups.1.lr": 0.2,
        "optimizer.groups.1.params": [],
        "schedule.warmup": 5,
        "schedule.decay": [0.1, 0.5],
        "size.height": 3,
        "size.width": 4,
        "empty": "{}",
    }


def test_values_are_plain_and_the_same_in_every_process():
    values = flat(
        mode=Mode.FAST,
        path=Path("data"),
        function=rate,
        partial=functools.partial(rate, base=2.0),
        kind=torch.optim.SGD,
        names={"b", "a"},
        weights=torch.tensor([1.0, 2.0]),
        dtype=torch.bfloat16,
        limit=math.inf,
        instance=object(),
    )
    assert values == {
        "mode": "Mode.FAST",
        "path": "data",
        "function": f"{__name__}.rate",
        "partial": f"{__name__}.rate(base=2.0)",
        "kind": "torch.optim.sgd.SGD",
        "names": ["a", "b"],
        "weights": [1.0, 2.0],
        "dtype": "torch.bfloat16",
        "limit": "inf",
        "instance": "<object object>",
    }
    assert json.loads(dumps(values)) == values


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (0.1, 0.1000001),
        (2**63, 2**63 + 1),
        (16**9000, 16**9000 + 1),
        (math.nan, math.inf),
        ("a" * 10_000, "a" * 9_999 + "b"),
        (np.zeros(5000), np.r_[np.zeros(2500), 1.0, np.zeros(2499)]),
        (list(range(3000)), [*range(2999), 0]),
        (1, "1"),
        (None, "null"),
        ({"a": {"b": 1}, "a.b": 2}, {"a": {"b": 3}, "a.b": 2}),
        ({1: "x", "1": "y"}, {1: "z", "1": "y"}),
        (Mode.FAST, Mode.SLOW),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_differ_are_recorded_as_different(first, second):
    one, two = json.loads(dumps(flat(value=first))), json.loads(dumps(flat(value=second)))
    assert one != two
    # JavaScript reads every number as a double.
    assert json.dumps(one) != json.dumps(two)
    numbers = [value for value in one.values() if isinstance(value, int)]
    assert all(abs(number) <= 2**53 for number in numbers)


def test_a_configuration_that_contains_itself_can_be_recorded():
    config = {"lr": 0.1}
    config["self"] = config
    assert flat(**config)["lr"] == 0.1


def test_a_value_whose_text_raises_does_not_stop_the_run():
    class Rude:
        def __str__(self):
            raise ValueError("no")

    assert flat(value=Rude()) == {"value": "<Rude whose text cannot be read: ValueError>"}


def test_settings_described_after_the_start_are_merged_by_path(tmp_path):
    with Monitor(0, tmp_path, config={"lr": 0.1, "seed": 3}, console=False, resources=False) as monitor:
        monitor.total_epochs = 7
        monitor.describe({"optimizer": {"name": "SGD"}, "lr": 0.2}, origins={"lr": "fdl.yml:3"})
    state = snapshot(tmp_path)
    assert {item["path"]: item["value"] for item in state["config"]} == {
        "lr": 0.2,
        "seed": 3,
        "optimizer.name": "SGD",
    }
    assert next(item["origin"] for item in state["config"] if item["path"] == "lr") == "fdl.yml:3"
    assert state["status"]["total_epochs"] == 7
    assert "config" not in state["status"]["facts"]


def test_settings_of_an_earlier_start_are_not_mixed_with_those_of_a_later_one(tmp_path):
    for settings in ({"lr": 0.1, "old": True}, {"lr": 0.2}):
        with Monitor(1, tmp_path, console=False, resources=False) as monitor:
            monitor.describe(settings)
            monitor.log(0, {"loss": 1.0}, duration=1.0)
    assert [(item["path"], item["value"]) for item in snapshot(tmp_path)["config"]] == [("lr", 0.2)]


def test_describing_a_finished_run_or_without_a_dict_raises(tmp_path):
    monitor = Monitor(1, tmp_path, console=False, resources=False)
    with pytest.raises(MonitorError, match=r"settings is \['lr'\]. Pass a dict"):
        monitor.describe(["lr"])
    monitor.close()
    with pytest.raises(MonitorError, match=r"the run has finished\. Describe the run before"):
        monitor.describe({"lr": 0.1})
