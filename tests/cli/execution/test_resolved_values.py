"""The resolved values of a run reach the program, by variable or by file."""

import json
import sys

import pytest

from flodl.cli.execution.process import child_environment
from flodl.core import environment

TABLE = {"lr": {"value": 0.1, "origin": "fdl.yml:3"}}


def test_without_fdl_there_are_no_resolved_values():
    assert environment.resolved_config() == {}


def test_the_table_is_read_inline_or_from_a_file(monkeypatch, tmp_path):
    monkeypatch.setenv(environment.RESOLVED_CONFIG, json.dumps(TABLE))
    assert environment.resolved_config() == TABLE
    (tmp_path / "table.json").write_text(json.dumps(TABLE))
    monkeypatch.setenv(environment.RESOLVED_CONFIG, str(tmp_path / "table.json"))
    assert environment.resolved_config() == TABLE


def test_in_a_container_it_is_read_from_the_project(monkeypatch, tmp_path):
    monkeypatch.setenv("FDL_PROJECT_ROOT", str(tmp_path))
    assert environment.resolved_config() == {}
    (tmp_path / ".fdl").mkdir()
    (tmp_path / ".fdl/resolved.json").write_text(json.dumps(TABLE))
    assert environment.resolved_config() == TABLE


@pytest.mark.parametrize("text", ["{", "[]", '{"lr": 3}', "/no/such/file", "words"])
def test_an_invalid_table_is_ignored(monkeypatch, text):
    monkeypatch.setenv(environment.RESOLVED_CONFIG, text)
    assert environment.resolved_config() == {}


@pytest.mark.parametrize(("active", "first"), [("", True), (sys.prefix, True), ("/some/other/venv", False)])
def test_python_comes_from_the_active_environment_or_this_one(monkeypatch, active, first):
    monkeypatch.setenv("VIRTUAL_ENV", active)
    monkeypatch.setenv("PATH", "/usr/bin")
    folders = child_environment()["PATH"].split(":")
    assert (folders[-1] == "/usr/bin") is first
    assert len(folders) == 2
