"""Fixtures for the tests of the command line; global state is restored after each test."""

import os
import textwrap

import pytest
import torch

from flodl.core import log

_VARIABLES = (
    "FDL_ENV",
    "FLODL_COLOR",
    "FORCE_COLOR",
    "FLODL_RESOLVED_CONFIG",
    "FLODL_MONITOR",
    "FDL_PROJECT_ROOT",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
)


@pytest.fixture(autouse=True)
def restored_state(monkeypatch):
    monkeypatch.setenv("FLODL_VERBOSITY", "normal")
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("FDL_NO_UPDATE_CHECK", "1")
    for name in _VARIABLES:
        monkeypatch.setenv(name, "")  # registered, so that monkeypatch restores it
        monkeypatch.delenv(name)
    verbosity, num_threads = log.verbosity(), torch.get_num_threads()
    log.set_verbosity("normal")
    yield
    log.set_verbosity(verbosity)
    torch.set_num_threads(num_threads)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Create a project from files by name, and change to its folder."""

    def make(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).lstrip("\n"))
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return make


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Put a fake executable on the PATH that records its folder and arguments."""

    def make(name, code=0):
        folder = tmp_path / "stand-ins"
        folder.mkdir(exist_ok=True)
        record = folder / f"{name}.txt"
        script = folder / name
        script.write_text(
            f'#!/bin/sh\npwd > {record}\nfor word in "$@"; do echo "$word" >> {record}; done\nexit {code}\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        return lambda: record.read_text().splitlines()

    return make
