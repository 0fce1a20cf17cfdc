"""The settings of the user that a monitor finds in the program."""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from flodl import Monitor
from flodl.core.environment import RESOLVED_CONFIG
from flodl.monitor.snapshot import snapshot


@dataclass
class Settings:
    width: int = 8


def settings(folder):
    return {item["path"]: item["value"] for item in snapshot(folder)["config"]}


def quiet(folder, **options):
    with Monitor(1, folder, console=False, resources=False, **options):
        pass
    return settings(folder)


def test_a_monitor_without_config_records_the_arguments_of_the_program(tmp_path):
    args = argparse.Namespace(lr=0.1, name="a")
    assert quiet(tmp_path) == {"config.lr": args.lr, "config.name": args.name}


def test_arguments_are_found_in_the_functions_that_call_the_one_with_the_monitor(tmp_path):
    def train():
        return quiet(tmp_path)

    config = Settings(width=16)
    assert train() == {"config.width": config.width}


def test_several_settings_have_the_names_of_their_variables(tmp_path):
    args, options = argparse.Namespace(lr=0.1), Settings()
    assert quiet(tmp_path) == {"config.args.lr": args.lr, "config.options.width": options.width}


def test_config_replaces_what_would_be_found(tmp_path):
    args = argparse.Namespace(lr=0.1)
    assert quiet(tmp_path / "given", config={"rate": args.lr}) == {"rate": 0.1}
    assert quiet(tmp_path / "none", config={}) == {}


def test_values_that_the_program_was_started_with_are_recorded_once_with_their_origins(tmp_path, monkeypatch):
    published = {"lr": {"value": 0.1, "origin": "--lr"}, "batch-size": {"value": 8, "origin": "fdl.yml:3"}}
    monkeypatch.setenv(RESOLVED_CONFIG, json.dumps(published))
    args = argparse.Namespace(lr=0.1, batch_size=8, name="a")
    assert quiet(tmp_path / "found") == {"config.name": args.name, "lr": 0.1, "batch_size": 8}
    origins = {item["path"]: item["origin"] for item in snapshot(tmp_path / "found")["config"]}
    assert origins == {"config.name": "", "lr": "--lr", "batch_size": "fdl.yml:3"}
    given = quiet(tmp_path / "given", config={"lr": 0.2})
    assert given == {"lr": 0.2, "started_with.lr": 0.1, "batch_size": 8}


class Rude(argparse.Namespace):
    @property
    def __dict__(self):
        raise ValueError("no")


def test_arguments_that_cannot_be_read_do_not_end_the_run(tmp_path):
    args = Rude()
    assert quiet(tmp_path) == {}
    assert isinstance(args, argparse.Namespace)


@pytest.mark.slow
def test_a_monitor_in_a_program_without_torch_imports_no_torch(tmp_path):
    code = (
        "import sys, argparse; from flodl import Monitor; args = argparse.Namespace(lr=0.1)\n"
        f"with Monitor(1, {str(tmp_path)!r}, console=False, resources=False) as monitor:\n"
        "    monitor.log(0, {'loss': 0.5})\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == ""
    assert settings(tmp_path) == {"config.lr": 0.1}


@pytest.mark.slow
def test_settings_of_a_tool_that_runs_the_program_are_not_recorded(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "import argparse; from flodl import Monitor; args = argparse.Namespace(lr=0.1)\n"
        f"with Monitor(1, {str(tmp_path / 'run')!r}, console=False, resources=False): pass\n"
    )
    tool = ["-m", "trace", "--trace", "--ignore-dir", tmp_path.anchor]  # has a Namespace
    done = subprocess.run([sys.executable, *tool, program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert settings(tmp_path / "run") == {"config.lr": 0.1}
