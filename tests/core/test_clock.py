"""The time at which an object was created is told apart from a setting."""

import subprocess
import sys
import time

import pytest

from flodl.core.clock import READING, is_reading, is_same_reading


@pytest.mark.parametrize("clock", [time.time, time.perf_counter, time.monotonic])
def test_readings_of_a_clock_in_this_process_are_recognized(clock):
    # One in ten thousand readings has five zeros at its end.
    assert any(is_reading(clock()) for _ in range(3))


@pytest.mark.parametrize("value", [1.7e9, 1.7e9 + 0.123456, 0.1, 100.0, 1e-3, 3.14159265])
def test_a_constant_is_no_reading(value):
    assert not is_reading(value)


@pytest.mark.parametrize("seconds", [-86_400 * 365, 3600])
def test_a_time_of_another_year_or_in_the_future_is_no_reading(seconds):
    assert not is_reading(time.time() + seconds)


@pytest.mark.parametrize("clock", [time.perf_counter, time.monotonic])
def test_a_number_near_a_clock_that_was_written_or_computed_is_no_reading(clock):
    whole = float(int(clock()))
    assert not any(is_reading(one) for one in (whole, whole - 0.5, whole - 1 / 3, whole - 0.125))


def test_integers_and_booleans_are_no_readings():
    assert not any(map(is_reading, (int(time.time()), True, None, "1.7e9")))


def test_a_reading_is_the_same_as_one_that_an_earlier_version_recorded():
    for value in (1795109879.8816779, 3277.162093674):
        assert is_same_reading(READING, value)
        assert is_same_reading(value, READING)
    for value in (0.5, 5, "a text", None, time.time() + 3600):
        assert not is_same_reading(READING, value)


def test_a_time_from_before_the_import_is_a_reading():
    code = (
        "import time; start = [time.time()]; time.sleep(1.2)\n"
        "from flodl.core.clock import is_reading\n"
        "assert is_reading(start[0]), start"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
