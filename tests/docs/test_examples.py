"""Every example runs on its own, from any folder, without output on standard error."""

import ast
from pathlib import Path

import pytest

from ..warm_python import WarmPython, without_settings

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def python():
    # What torch says on ARM processors without bfloat16.
    started = WarmPython(without_settings() | {"PYTHONWARNINGS": "ignore:mkldnn_matmul failed:UserWarning"})
    yield started
    started.close()


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(example, python, tmp_path):
    done = python.run(example, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_says_what_it_shows(example):
    assert ast.get_docstring(ast.parse(example.read_text(encoding="utf-8")))
