"""Every example runs on its own, from any folder, without output on standard error."""

import ast
import os
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(example, warm_python, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("FLODL_")]:
        monkeypatch.delenv(name)
    done = warm_python.run(example, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_says_what_it_shows(example):
    assert ast.get_docstring(ast.parse(example.read_text(encoding="utf-8")))
