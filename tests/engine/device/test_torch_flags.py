"""Torch's flags, under their older and newer names; each test runs in its own process."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

COMMON = """
import torch
from torch import nn
from flodl.engine import TrainStep
from flodl.engine.verify.gradients import full_float32
from flodl.engine.guards.thorough import ThoroughGuard
from flodl.engine.program.precision import computing_in
from flodl.engine.device.torch_flags import cudnn_allows_tf32, current_flags, matmul_precision, set_flags
matmul = torch.backends.cuda.matmul
"""


@pytest.fixture
def run(warm_python, tmp_path):
    def run(code: str) -> None:
        done = warm_python.run("-c", COMMON + code, cwd=tmp_path)
        assert done.returncode == 0, done.stderr

    return run


def test_flags_with_newer_names_are_read_and_restored(run):
    run("""
torch.backends.fp32_precision = "tf32"
matmul.fp32_precision = "tf32"
convolution, recurrence = torch.backends.cudnn.conv, torch.backends.cudnn.rnn
convolution.fp32_precision, recurrence.fp32_precision = "tf32", "ieee"
assert matmul_precision() is None and cudnn_allows_tf32() is None
with full_float32():
    assert matmul.fp32_precision == convolution.fp32_precision == "ieee"
assert matmul.fp32_precision == convolution.fp32_precision == "tf32"
matmul.fp32_precision = "ieee"
with computing_in("tf32", torch.device("cuda")):
    assert matmul.fp32_precision == "tf32"
assert matmul.fp32_precision == "ieee"
""")


def test_a_changed_flag_is_detected_under_either_name(run):
    run("""
ground = ThoroughGuard(nn.Linear(2, 2))
assert ground.what_changed() is None
torch.set_float32_matmul_precision("high")
assert "float32_matmul_precision" in ground.what_changed()
torch.set_float32_matmul_precision("highest")
assert ground.what_changed() is None
matmul.fp32_precision = "tf32"
assert "float32_matmul_precision" in ground.what_changed()
""")


def test_flags_are_copied_to_another_process(run):
    run("""
import pickle, subprocess, sys
matmul.fp32_precision = "tf32"
matmul.allow_fp16_reduced_precision_reduction = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True
torch.set_default_dtype(torch.float64)
given = current_flags()
code = "import pickle, sys; from flodl.engine.device.torch_flags import *; import torch;" \\
    "given = pickle.load(sys.stdin.buffer); set_flags(given); assert current_flags() == given"
subprocess.run([sys.executable, "-c", code], input=pickle.dumps(given), check=True)
""")
