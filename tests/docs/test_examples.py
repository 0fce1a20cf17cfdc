"""Every example runs on its own, from any folder, without output on standard error."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(example, tmp_path):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FLODL_")}
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        # One thread each, because several tests run at the same time.
        env={
            **environment,
            "PYTHONIOENCODING": "utf-8",
            "OMP_NUM_THREADS": "1",
            # What torch says on ARM processors without bfloat16.
            "PYTHONWARNINGS": "ignore:mkldnn_matmul failed:UserWarning",
        },
        capture_output=True,
        encoding="utf-8",
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_says_what_it_shows(example):
    assert ast.get_docstring(ast.parse(example.read_text(encoding="utf-8")))
