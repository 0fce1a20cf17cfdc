"""Code that asks whether it is being recorded hears the same in every tier."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from flodl.engine.device.capturing import report_capturing

CUDA = torch.device("cuda")


def test_the_answer_is_yes_inside_and_torchs_own_outside() -> None:
    asked = torch.cuda.is_current_stream_capturing
    with report_capturing(CUDA):
        assert torch.cuda.is_current_stream_capturing()
        with report_capturing(CUDA):
            assert torch.cuda.is_current_stream_capturing()
        assert torch.cuda.is_current_stream_capturing()
    assert torch.cuda.is_current_stream_capturing is asked


def test_an_error_inside_takes_the_answer_away() -> None:
    asked = torch.cuda.is_current_stream_capturing
    with pytest.raises(RuntimeError, match="broken"), report_capturing(CUDA):
        raise RuntimeError("broken")
    assert torch.cuda.is_current_stream_capturing is asked


def test_on_a_cpu_nothing_is_said() -> None:
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


def test_an_optimizer_of_torch_hears_what_is_the_case(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    asking: dict[str, Any] = {"__name__": "torch.optim.adam", "torch": torch}
    exec("def ask(): return torch.cuda.is_current_stream_capturing()", asking)
    with report_capturing(CUDA):
        assert asking["ask"]() is False


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_code_that_is_compiled_may_ask() -> None:
    compiled = torch.compile(
        lambda x: x + 1 if torch.cuda.is_current_stream_capturing() else x, backend="eager", fullgraph=True
    )
    with report_capturing(CUDA):
        assert compiled(torch.zeros(1)) == 1
