"""The scripts in `benchmarks` reject settings that would measure something wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

DDP = Path(__file__).parents[2] / "benchmarks" / "ddp"


def run(script, *words):
    done = subprocess.run([sys.executable, DDP / script, *words], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"),
    [("language_model.py", ()), ("mps.py", ("--precision", "bf16"))],
)
def test_shares_with_which_bf16_is_wrong_under_mps_are_rejected(script, words):
    code, errors = run(script, "--shares", "60,25", *words)
    assert code == 2
    assert "--shares has 60: with such a share, bf16 matmuls under MPS may return wrong results." in errors
    assert "Use 25, 50, 90, 100" in errors


def test_shares_that_are_right_or_a_different_precision_are_accepted(monkeypatch):
    monkeypatch.syspath_prepend(str(DDP))
    from shared_gpu.mps import wrong_shares

    assert wrong_shares([90, 25], "bf16") == wrong_shares([100, 50], "bf16") == ""
    assert wrong_shares([75, 25], "fp32") == ""
    assert wrong_shares([30, 40, 60, 66, 70, 75, 80], "bf16").startswith(
        "--shares has 30, 40, 60, 66, 70, 75, 80:"
    )
