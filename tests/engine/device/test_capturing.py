"""Code that asks whether it is being captured gets the same answer in every tier."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from flodl.engine.device.capturing import report_capturing

CUDA = torch.device("cuda")


def test_torch_reports_capturing_inside_and_its_own_answer_outside() -> None:
    asked = torch.cuda.is_current_stream_capturing
    with report_capturing(CUDA):
        assert torch.cuda.is_current_stream_capturing()
        with report_capturing(CUDA):
            assert torch.cuda.is_current_stream_capturing()
        assert torch.cuda.is_current_stream_capturing()
    assert torch.cuda.is_current_stream_capturing is asked


def test_an_error_inside_restores_torchs_own_answer() -> None:
    asked = torch.cuda.is_current_stream_capturing
    with pytest.raises(RuntimeError, match="broken"), report_capturing(CUDA):
        raise RuntimeError("broken")
    assert torch.cuda.is_current_stream_capturing is asked


def test_on_a_cpu_torchs_answer_is_unchanged() -> None:
    asked = torch.cuda.is_current_stream_capturing
    with report_capturing(torch.device("cpu")):
        assert torch.cuda.is_current_stream_capturing is asked


def test_steps_of_two_threads_that_overlap_leave_torchs_own_answer() -> None:
    asked = torch.cuda.is_current_stream_capturing
    inside, may_leave = threading.Event(), threading.Event()

    def other() -> None:
        with report_capturing(CUDA):
            inside.set()
            may_leave.wait(10)
            assert torch.cuda.is_current_stream_capturing()

    thread = threading.Thread(target=other)
    with report_capturing(CUDA):
        thread.start()
        assert inside.wait(10)
    may_leave.set()
    thread.join()
    assert torch.cuda.is_current_stream_capturing is asked


def test_a_torch_optimizer_gets_the_true_answer(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    asking: dict[str, Any] = {"__name__": "torch.optim.adam", "torch": torch}
    exec("def ask(): return torch.cuda.is_current_stream_capturing()", asking)
    with report_capturing(CUDA):
        assert asking["ask"]() is False


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_code_may_ask_whether_it_is_captured() -> None:
    compiled = torch.compile(
        lambda x: x + 1 if torch.cuda.is_current_stream_capturing() else x, backend="eager", fullgraph=True
    )
    with report_capturing(CUDA):
        assert compiled(torch.zeros(1)) == 1
