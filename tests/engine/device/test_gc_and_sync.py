"""What the engine offers to custom training loops, without a CUDA device."""

from __future__ import annotations

import gc
import threading
import traceback
import warnings
import weakref

import pytest
import torch

from flodl.engine import calm_collector, capture, forget_peaks, memory_use, no_waiting
from flodl.engine.device import gc_and_sync
from flodl.engine.device.gc_and_sync import waits_are_errors

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")


def test_the_collector_is_restored_after_an_error() -> None:
    frozen = gc.get_freeze_count()
    with pytest.raises(ValueError), calm_collector() as collector:  # noqa: PT012
        assert not gc.isenabled()
        assert collector.collect() == collector.pauses_s[-1]
        raise ValueError
    assert gc.isenabled()
    assert gc.get_freeze_count() <= frozen


class Cycle:
    """An object that only the garbage collector can free."""

    def __init__(self) -> None:
        self.itself = self


@without_cuda
def test_the_start_visits_no_objects_and_a_collection_frees_new_cycles(monkeypatch) -> None:
    monkeypatch.setattr(gc_and_sync, "FULL_COLLECTION_EVERY_S", 1e9)
    num_collections = [stats["collections"] for stats in gc.get_stats()][2]
    with calm_collector() as collector:
        assert [stats["collections"] for stats in gc.get_stats()][2] == num_collections
        cycles = [weakref.ref(Cycle()) for _ in range(3)]
        assert all(cycle() is not None for cycle in cycles)
        collector.collect()
        assert all(cycle() is None for cycle in cycles)


def test_garbage_from_before_the_start_is_collected_when_a_full_collection_is_due(monkeypatch) -> None:
    gc.disable()
    try:
        monkeypatch.setattr(gc_and_sync, "FULL_COLLECTION_EVERY_S", 1e9)
        old = weakref.ref(Cycle())
        with calm_collector() as collector:
            monkeypatch.setattr(gc_and_sync, "FULL_COLLECTION_EVERY_S", 0.0)
            collector.collect()
            assert old() is None
        old = weakref.ref(Cycle())
        with calm_collector():
            assert old() is None
    finally:
        gc.enable()


@without_cuda
def test_without_a_device_capture_calls_the_function_itself() -> None:
    relu = capture(torch.relu)
    assert relu(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
    assert relu.captures == 0


@without_cuda
def test_without_a_device_there_is_no_wait_and_no_memory_to_report() -> None:
    with no_waiting():
        assert torch.ones(3).sum().item() == 3
    assert memory_use() is None
    forget_peaks()


@pytest.fixture
def sync_mode(monkeypatch: pytest.MonkeyPatch) -> list[int | str]:
    """Torch's setting, without a CUDA device."""
    mode: list[int | str] = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", mode.append)
    return mode


def wait() -> None:
    """Warn like torch if the host waits for a device."""
    warnings.warn("called a synchronizing CUDA operation (Triggered internally.)", stacklevel=1)


def in_another_thread(function) -> list[BaseException]:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return failed


def test_a_wait_is_an_error_that_ends_with_the_line_that_waited(sync_mode) -> None:
    shown = warnings._showwarnmsg
    with pytest.raises(RuntimeError, match=r"^called a synchronizing CUDA operation$") as error:  # noqa: SIM117
        with waits_are_errors():
            wait()
    lines = [frame for frame in traceback.extract_tb(error.tb) if "flodl/engine" not in frame.filename]
    assert lines[-1].name == "wait"
    assert sync_mode == [0, "warn", 0]
    assert warnings._showwarnmsg is shown


def test_other_threads_may_wait_at_the_same_time(sync_mode, capsys) -> None:
    with waits_are_errors():
        assert in_another_thread(wait) == []
    assert "synchronizing" not in capsys.readouterr().err
    assert len(in_another_thread(wait)) == 1, "warnings are errors in tests"


def test_other_warnings_are_unaffected(sync_mode) -> None:
    with pytest.warns(UserWarning, match="something else"), waits_are_errors():
        warnings.warn("something else", stacklevel=1)


def test_threads_that_must_not_wait_may_overlap(sync_mode) -> None:
    entered, may_leave = threading.Event(), threading.Event()

    def hurried() -> None:
        with waits_are_errors():
            entered.set()
            may_leave.wait(10)
            wait()

    failed: list[BaseException] = []
    with waits_are_errors():
        thread = threading.Thread(target=lambda: failed.extend(in_another_thread(hurried)))
        thread.start()
        assert entered.wait(10)
    assert sync_mode == [0, "warn"]
    may_leave.set()
    thread.join()
    assert [str(error) for error in failed] == ["called a synchronizing CUDA operation"]
    assert sync_mode == [0, "warn", 0]


def test_a_setting_of_the_user_is_kept(sync_mode) -> None:
    sync_mode.append(2)
    with waits_are_errors():
        assert sync_mode[-1] == 2
    assert sync_mode[-1] == 2
