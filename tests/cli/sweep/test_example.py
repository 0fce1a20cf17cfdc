"""The example project of `fdl sweep`, as its documentation shows it."""

import json
import re
import shutil
from pathlib import Path

import pytest

from flodl.cli import main

ROOT = Path(__file__).parents[3]


@pytest.fixture
def example(tmp_path, monkeypatch):
    shutil.copytree(
        ROOT / "examples/mnist_sweep", tmp_path / "project", ignore=shutil.ignore_patterns("runs")
    )
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("FLODL_DATA", str(tmp_path))  # no MNIST here: generated digits


def test_the_dry_run_is_the_documented_one(example, capfd):
    text = (ROOT / "docs/sweeps.md").read_text(encoding="utf-8")
    shown = re.search(r"\$ fdl sweep --dry-run\n(.*?)\n\.\.\.", text, re.DOTALL)
    assert main(["sweep", "--dry-run"]) == 0
    assert capfd.readouterr().out.startswith(shown[1])


@pytest.mark.slow
def test_a_run_trains_and_is_judged_by_its_accuracy(example, capfd):
    words = ["sweep", "--search", "grid", "--over", "lr=0.05", "--over", "hidden=8", "--over", "dropout=0.1"]
    # The number of runs is set in the manifest for its random search.
    text = Path("fdl.yml").read_text().replace("  runs: 8\n", "")
    Path("fdl.yml").write_text(text)
    assert main([*words, "--json", "run", "--epochs", "1", "--images", "300"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["metric"] == "eval_accuracy"
    assert 0 < found["runs"][0]["result"] <= 1
