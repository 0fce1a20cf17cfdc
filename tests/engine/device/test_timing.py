"""The time of a tier is the time of its calls, without the time between them."""

from __future__ import annotations

import pytest
import torch

from flodl.engine.device import timing
from flodl.engine.device.timing import ENOUGH, WindowTimes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    now = {"s": 0.0}
    monkeypatch.setattr(timing, "perf_counter", lambda: now["s"])
    return now


def call(times: WindowTimes, clock: dict[str, float], seconds: float, *, opens: bool = True) -> None:
    times.begin_call("eager", opens=opens)
    clock["s"] += seconds
    times.end_call()
    clock["s"] += 100.0  # a slow loader


def new_times() -> WindowTimes:
    return WindowTimes(torch.device("cpu"))


def test_time_between_calls_does_not_count(clock) -> None:
    times = new_times()
    told = []
    for _ in range(ENOUGH["eager"]):
        assert times.of("eager") is None
        call(times, clock, 1.0)
        call(times, clock, 2.0, opens=False)
        told.append(times.end_window("eager"))
    assert told == [False] * (ENOUGH["eager"] - 1) + [True]
    assert times.of("eager") == 3.0


def test_one_slow_window_does_not_decide(clock) -> None:
    times = new_times()
    for seconds in (50.0, 1.0, 1.0):
        call(times, clock, seconds)
        times.end_window("eager")
    assert times.of("eager") == 1.0


def test_the_latest_windows_count(clock) -> None:
    times = new_times()
    for seconds in [5.0] * 30 + [1.0] * 15:
        call(times, clock, seconds)
        times.end_window("eager")
    assert times.of("eager") == 1.0


def test_a_discarded_window_does_not_count(clock) -> None:
    times = new_times()
    for spoilt in (False, True, False, True, False):
        call(times, clock, 9.0 if spoilt else 1.0)
        if spoilt:
            times.discard_window()
        times.end_window("eager")
    assert times.of("eager") == 1.0
    times.forget("eager")
    assert not times.is_known("eager")
