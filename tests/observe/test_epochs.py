"""Timing epochs, with a clock that the test controls."""

from __future__ import annotations

import math

import pytest

from flodl.core.errors import MetricError
from flodl.observe import Book


class Clock:
    """A clock that stands still until the test advances it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def epochs_of(book: Book, clock: Clock, *seconds: float) -> None:
    for length in seconds:
        book.record("loss", 1.0)
        clock.now += length
        book.end_epoch()


def test_the_estimate_is_the_median_of_five_epochs_times_the_rest() -> None:
    clock = Clock()
    book = Book(clock=clock)
    assert math.isnan(book.eta(10))
    epochs_of(book, clock, 100.0, 1.0, 2.0, 500.0, 2.0, 3.0)
    assert book.eta(10) == 4 * 2.0
    assert book.eta(6) == 0.0
    assert book.eta(3) == 0.0


def test_the_number_of_flushes_does_not_change_the_estimate() -> None:
    clock = Clock()
    book = Book(clock=clock)
    for _ in range(3):
        for name in ("a", "b", "c"):
            book.record(name, 1.0)
            clock.now += 1.0
            book.flush([name])
        clock.now += 1.0
        book.end_epoch()
    assert book.durations == {0: 4.0, 1: 4.0, 2: 4.0}
    assert book.eta(5) == 8.0


def test_flushing_alone_gives_an_estimate_too() -> None:
    clock = Clock()
    book = Book(clock=clock)
    for done in range(1, 4):
        clock.now += 2.0
        book.record("train", 1.0)
        book.record("test", 1.0)
        book.flush(["train"])
        clock.now += 1.0
        book.flush(["test"])
        assert book.eta(10) == 3.0 * (10 - done)
    assert book.durations == {0: 3.0, 1: 3.0, 2: 3.0}


def test_a_flush_inside_an_epoch_does_not_count_it_as_done() -> None:
    clock = Clock()
    book = Book(clock=clock)
    epochs_of(book, clock, 10.0)
    clock.now += 1.0
    book.record("loss", 1.0)
    book.flush()
    assert book.eta(3) == 20.0


def test_a_resumed_run_counts_only_what_remains() -> None:
    clock = Clock()
    book = Book(clock=clock)
    clock.now += 50.0
    book.epoch = 7
    epochs_of(book, clock, 4.0)
    assert book.durations == {7: 4.0}
    assert book.eta(10) == 2 * 4.0


def test_the_time_between_save_and_resume_does_not_count() -> None:
    clock = Clock()
    book = Book(clock=clock)
    epochs_of(book, clock, 4.0, 4.0)
    clock.now += 3.0
    saved = book.state_dict()
    clock.now += 1e6
    resumed = Book(clock=clock)
    resumed.load_state_dict(saved)
    clock.now += 30.0
    resumed.start()
    clock.now += 1.0
    resumed.end_epoch()
    assert resumed.durations == {0: 4.0, 1: 4.0, 2: 4.0}


def test_setup_is_not_timed_after_start() -> None:
    clock = Clock()
    book = Book(clock=clock)
    clock.now += 60.0
    book.start()
    clock.now += 2.0
    book.start()
    epochs_of(book, clock, 3.0, 5.0)
    book.start()
    assert book.durations == {0: 5.0, 1: 5.0}


@pytest.mark.parametrize("epoch", [-1, 1.5, None])
def test_an_epoch_must_be_an_integer_of_at_least_zero(epoch: object) -> None:
    with pytest.raises(MetricError, match="the epoch is set to"):
        Book().epoch = epoch


def test_the_estimate_is_nan_until_an_epoch_has_ended() -> None:
    assert math.isnan(Book().eta(10))
    assert Book().eta(0) == 0.0


@pytest.mark.parametrize("total", ["3", None, -1, 2.5, True])
def test_the_number_of_epochs_must_be_an_integer(total: object) -> None:
    with pytest.raises(MetricError, match=r"eta got total_epochs=.* an integer of at least 0"):
        Book().eta(total)


def test_a_child_that_ends_the_epoch_of_its_parent_again_changes_nothing() -> None:
    parent, child = Book(), Book()
    for value in (1.0, 2.0, 3.0):
        parent.record("loss", value)
        child.record("penalty", value)
        parent.end_epoch(children=[child])
        child.end_epoch()
    assert (parent.epoch, child.epoch) == (3, 3)
    assert parent.history("loss") == child.history("penalty") == {0: 1.0, 1: 2.0, 2: 3.0}


def test_a_child_may_end_the_epoch_before_its_parent() -> None:
    parent, child = Book(), Book()
    for value in (1.0, 2.0, 3.0):
        parent.record("loss", value)
        child.record("penalty", value)
        child.end_epoch()
        parent.end_epoch(children=[child])
    assert (parent.epoch, child.epoch) == (3, 3)
    assert parent.history("loss") == child.history("penalty") == {0: 1.0, 1: 2.0, 2: 3.0}


def test_a_child_that_is_trained_alone_after_its_parent_counts_its_epochs() -> None:
    parent, child = Book(), Book()
    parent.end_epoch(children=[child])
    for value in (1.0, 2.0):
        child.record("penalty", value)
        child.end_epoch()
    assert (child.epoch, child.history("penalty")) == (3, {1: 1.0, 2: 2.0})


def test_a_child_that_was_trained_before_its_parent_existed_keeps_its_epochs_apart() -> None:
    clock = Clock()
    child = Book(clock=clock)
    child.record("penalty", 1.0)
    clock.now += 5.0
    child.end_epoch()
    clock.now += 5.0
    parent = Book(clock=clock)
    parent.record("loss", 2.0)
    parent.end_epoch(children=[child])
    assert (parent.history("loss"), child.history("penalty")) == ({1: 2.0}, {0: 1.0})
