"""Blocks that must not stop half-way."""

from __future__ import annotations

import signal
import threading

import pytest

from flodl.core.interrupts import uninterrupted


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    seen = []

    def be_interrupted() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            seen.append("went on")

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    assert seen == ["went on"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_handler_of_ones_own_hears_of_it_afterwards() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            assert not heard
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_error_of_the_block_stays_the_error() -> None:
    with pytest.raises(ValueError, match="of the block"), uninterrupted():
        raise ValueError("of the block")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_thread_only_runs_the_block() -> None:
    ran = []

    def run() -> None:
        with uninterrupted():
            ran.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ran
