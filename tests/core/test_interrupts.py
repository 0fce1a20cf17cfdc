"""Delaying signals until a block has finished."""

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
            seen.append("finished")

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    assert seen == ["finished"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_custom_handler_is_called_afterwards() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            assert not received
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_error_in_the_block_is_raised() -> None:
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
