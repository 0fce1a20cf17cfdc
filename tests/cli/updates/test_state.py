"""The state file: its path, how a broken file is handled, and what an update preserves."""

import json
import sys
import time
from pathlib import Path

import pytest

from flodl.cli.updates import state


@pytest.fixture
def file(tmp_path):
    return tmp_path / "flodl" / "config.json"


def put(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    ("platform", "variable", "value", "expected"),
    [
        ("linux", "XDG_CONFIG_HOME", "/settings", "/settings/flodl/config.json"),
        ("linux", "XDG_CONFIG_HOME", "not/absolute", "/home/me/.config/flodl/config.json"),
        ("linux", "XDG_CONFIG_HOME", "", "/home/me/.config/flodl/config.json"),
        ("darwin", "XDG_CONFIG_HOME", "/x", "/home/me/Library/Application Support/flodl/config.json"),
        ("win32", "APPDATA", "/roaming", "/roaming/flodl/config.json"),
        ("win32", "APPDATA", "", "/home/me/AppData/Roaming/flodl/config.json"),
    ],
)
def test_the_path_follows_the_conventions_of_each_system(monkeypatch, platform, variable, value, expected):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv(variable, value)
    assert state.state_file() == Path(expected)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[1, 2]", "null", "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "[" * 100_000],
)
def test_a_file_that_cannot_be_parsed_is_an_error_and_is_not_changed(file, content):
    put(file, content)
    with pytest.raises(state.UnreadableSettings, match=r"config\.json:"):
        state.load(file)
    with pytest.raises(state.UnreadableSettings):
        state.update(file, first_run_seen=True)
    assert [path.read_text() for path in file.parent.iterdir()] == [content]


def test_a_missing_file_means_the_defaults_and_is_not_created_by_reading(file):
    assert state.load(file) == state.State()
    assert not file.parent.exists()


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"enabled": False}, state.State(enabled=False)),
        ({"enabled": "false"}, state.State(enabled=False)),
        (False, state.State(enabled=False)),
        ("nonsense", state.State(enabled=False)),
        (True, state.State()),
        ({"last_check": "yesterday", "first_run_seen": "no"}, state.State()),
        ({"last_check": -5}, state.State()),
        ({"last_check": 5.5}, state.State(last_check=5)),
        ({"last_check": True}, state.State()),
        ({"latest_known": ["0.2.0"]}, state.State()),
        (
            {"latest_known": {"flodl": 3, "torch": "\x1b[31m2", "x": "1.0"}},
            state.State(latest_known={"x": "1.0"}),
        ),
    ],
)
def test_values_of_a_wrong_type_are_ignored_but_enabled_must_be_true(file, section, expected):
    put(file, {"update_check": section})
    assert state.load(file) == expected


def test_an_update_keeps_other_settings(file):
    put(file, {"theme": "dark", "update_check": {"enabled": True, "note": "mine"}})
    state.update(file, last_check=7)
    assert json.loads(file.read_text()) == {
        "theme": "dark",
        "update_check": {
            "enabled": True, "note": "mine", "last_check": 7, "latest_known": {}, "first_run_seen": False,
        },
    }  # fmt: skip
    assert [path.name for path in file.parent.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("age_s", "due"),
    [(0, False), (state.INTERVAL_S - 60, False), (state.INTERVAL_S + 1, True), (-3600, True)],
)
def test_a_check_is_due_after_a_day_or_when_the_clock_was_wrong(age_s, due):
    assert state.State(last_check=int(time.time() - age_s)).is_due() is due
