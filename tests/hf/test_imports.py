"""What loading a model imports, and how long that takes."""

import os
import subprocess
import sys

import pytest

from flodl.hf import AutoModelForMaskedLM

from .files.test_load import CONFIG

NOT_IMPORTED = {"transformers", "huggingface_hub", "tokenizers", "sympy", "torch._dynamo", "numpy.random"}
CODE = """
import sys, time, torch
start = time.process_time()
from {library} import AutoModelForMaskedLM
AutoModelForMaskedLM.from_pretrained(sys.argv[1])
print(time.process_time() - start, *sys.modules)
"""


def run(library, folder):
    """Return the seconds of CPU time without the import of torch, and the imported modules."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(library=library), str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    seconds, *modules = done.stdout.splitlines()[-1].split()
    return float(seconds), set(modules)


@pytest.mark.slow
def test_a_folder_is_loaded_without_optional_libraries(tmp_path):
    AutoModelForMaskedLM.from_config(CONFIG).export(tmp_path / "model")
    _, modules = run("flodl.hf", tmp_path / "model")
    assert not NOT_IMPORTED & modules


@pytest.mark.slow
def test_importing_and_loading_is_three_times_faster_than_with_transformers(tmp_path):
    pytest.importorskip("transformers")
    AutoModelForMaskedLM.from_config(CONFIG).export(tmp_path / "model")
    ours = min(run("flodl.hf", tmp_path / "model")[0] for _ in range(2))
    theirs = run("transformers", tmp_path / "model")[0]
    assert theirs >= 3 * ours
