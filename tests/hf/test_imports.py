"""What loading a model imports; `benchmarks/hf_cpu.py` measures how long that takes."""

import os
import subprocess
import sys

import pytest

from flodl.hf import AutoModelForMaskedLM

from .files.test_load import CONFIG

NOT_IMPORTED = {"transformers", "huggingface_hub", "tokenizers", "sympy", "torch._dynamo", "numpy.random"}
CODE = """
import sys, torch
from flodl.hf import AutoModelForMaskedLM
AutoModelForMaskedLM.from_pretrained(sys.argv[1])
print(*sys.modules)
"""


def imported(folder):
    """Return the modules that a program which loads a model has imported."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.slow
def test_a_folder_is_loaded_without_optional_libraries(tmp_path):
    AutoModelForMaskedLM.from_config(CONFIG).export(tmp_path / "model")
    assert not NOT_IMPORTED & imported(tmp_path / "model")
