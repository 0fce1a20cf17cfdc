"""Memory is reported for devices that exist."""

from __future__ import annotations

import pytest
import torch

from flodl.core import StepError
from flodl.engine import forget_peaks, memory_use


@pytest.mark.parametrize("ask", [memory_use, forget_peaks])
@pytest.mark.parametrize("device", ["foo", "cuda:x", ""])
def test_an_unknown_device_is_refused(ask, device) -> None:
    with pytest.raises(StepError, match=f"device={device!r} is not a device. Use 'cuda', 'cuda:0' or 'cpu'"):
        ask(device)


@pytest.mark.parametrize("ask", [memory_use, forget_peaks])
def test_a_device_without_memory_statistics_reports_nothing(ask) -> None:
    assert ask("cpu") is None
    assert ask(torch.device("meta")) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("ask", [memory_use, forget_peaks])
@pytest.mark.parametrize("device", ["cuda", "cuda:1", 0, torch.device("cuda")])
def test_a_missing_cuda_device_is_refused(ask, device) -> None:
    with pytest.raises(StepError, match=r"(finds no|is built without) CUDA.*\. Leave it out, or use 'cpu'\."):
        ask(device)
