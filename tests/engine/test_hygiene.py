"""What the engine offers to loops of one's own, where there is no CUDA device."""

from __future__ import annotations

import gc

import pytest
import torch

from flodl.engine import calm_collector, capture, forget_peaks, memory_use, no_waiting

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")


def test_the_collector_is_as_it_was_after_an_error() -> None:
    frozen = gc.get_freeze_count()
    with pytest.raises(ValueError), calm_collector() as collector:  # noqa: PT012
        assert not gc.isenabled()
        assert collector.collect() == collector.pauses_s[-1]
        raise ValueError
    assert gc.isenabled()
    assert gc.get_freeze_count() <= frozen


@without_cuda
def test_capture_calls_the_function_itself_where_there_is_no_device() -> None:
    relu = capture(torch.relu)
    assert relu(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
    assert relu.captures == 0


@without_cuda
def test_there_is_nothing_to_wait_for_and_no_memory_to_report() -> None:
    with no_waiting():
        assert torch.ones(3).sum().item() == 3
    assert memory_use() is None
    forget_peaks()
