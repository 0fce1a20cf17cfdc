"""Book: weighted means per epoch, missing epochs, saving and copying."""

from __future__ import annotations

import copy
import json
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flodl.core.errors import MetricError
from flodl.observe import Book


def flushed(*rows: dict[str, float]) -> Book:
    book = Book()
    for row in rows:
        for name, value in row.items():
            book.record(name, value)
        book.flush()
    return book


def test_two_values_flush_into_their_mean_and_a_second_flush_adds_nothing() -> None:
    book = Book()
    book.record("loss", 0.5)
    book.record("loss", 0.3)
    book.flush()
    book.flush()
    assert book.history("loss") == {0: 0.4}
    assert book.epoch == 0


def test_one_flush_per_epoch_makes_one_epoch_per_flush() -> None:
    assert flushed({"a": 3.0}, {"a": 2.0}, {"a": 1.0}).history("a") == {0: 3.0, 1: 2.0, 2: 1.0}


def test_flushes_of_different_names_share_an_epoch() -> None:
    book = Book()
    for value in (1.0, 2.0):
        book.record("train", value)
        book.flush(["train"])
        book.record("test", -value)
        book.flush("test")
    assert book.history("train") == {0: 1.0, 1: 2.0}
    assert book.history("test") == {0: -1.0, 1: -2.0}


def test_a_name_that_misses_an_epoch_leaves_a_gap() -> None:
    book = flushed({"a": 1.0, "b": 1.0}, {"a": 2.0}, {"a": 3.0, "b": 3.0})
    assert book.history("b") == {0: 1.0, 2: 3.0}
    assert book.trend("b").epochs == [0, 2]
    assert book.trend("b").values == [1.0, 3.0]


def test_the_end_of_an_epoch_merges_by_weight_and_starts_the_next() -> None:
    book = Book()
    book.record("loss", 1.0, weight=3)
    book.flush()
    book.record("loss", 5.0)
    book.end_epoch()
    assert book.history("loss") == {0: 2.0}
    assert book.epoch == 1
    book.end_epoch()
    book.record("loss", 7.0)
    book.end_epoch()
    assert book.history("loss") == {0: 2.0, 2: 7.0}


def test_a_flush_before_the_end_of_an_epoch_gives_the_same_mean() -> None:
    book = Book()
    for value in (1.0, 2.0):
        book.record("loss", value)
        book.flush()
        book.end_epoch()
    assert book.history("loss") == {0: 1.0, 1: 2.0}


def test_after_setting_an_earlier_epoch_a_flush_takes_the_next_free_one() -> None:
    book = flushed({"a": 1.0}, {"a": 2.0}, {"a": 3.0})
    book.epoch = 0
    book.record("a", 9.0)
    book.flush()
    assert book.history("a") == {0: 1.0, 1: 2.0, 2: 3.0, 3: 9.0}


def test_unknown_names_are_rejected_with_the_nearest_ones() -> None:
    book = flushed({"loss": 1.0})
    for call in (book.flush, book.reset, book.histories, book.trends):
        with pytest.raises(MetricError, match=r"no metric 'los' was recorded. Did you mean 'loss'"):
            call(["los"])


def test_an_unknown_trend_is_empty() -> None:
    assert not Book().trend("nothing")
    assert Book().history("nothing") == {}
    assert Book().latest() == {}


def test_names_keep_the_order_of_their_first_value() -> None:
    book = flushed({"z": 1.0, "a": 1.0})
    book.record("m", 1.0)
    assert book.names == ["z", "a", "m"]
    assert list(book.latest()) == ["z", "a"]
    assert list(book.histories()) == ["z", "a"]
    assert book.histories(["m"]) == {"m": {}}
    assert book.trends(["a", "z"]).names == ["a", "z"]


@pytest.mark.parametrize("read", [Book.trend, Book.history, lambda book, name: book.trends([name])])
def test_an_unknown_metric_name_raises_with_a_suggestion(read) -> None:
    book = Book()
    book.record("loss", 0.5)
    for _ in range(2):  # both while the value is pending and in the history
        with pytest.raises(MetricError, match=r"no metric 'train_loss' was recorded\. Did you mean 'loss'\?"):
            read(book, "train_loss")
        book.flush()
    assert book.num_records == 1


def test_before_anything_is_recorded_a_trend_is_empty() -> None:
    assert not Book().trend("train_loss")
    assert math.isnan(Book().trend("train_loss").latest)


def test_reset_forgets_history_and_pending_values() -> None:
    book = flushed({"a": 1.0, "b": 1.0})
    book.record("a", 2.0)
    book.reset(["a"])
    book.flush()
    assert book.names == ["b"]
    with pytest.raises(MetricError, match="no metric 'a' was recorded"):
        book.history("a")
    book.reset()
    assert book.names == []


def test_steps_are_counted() -> None:
    book = Book()
    book.end_step()
    book.end_step()
    assert book.step == 2


def test_a_weight_of_zero_does_not_count() -> None:
    book = Book()
    book.record("loss", math.nan, weight=0)
    assert (book.names, book.trend("loss").values) == (["loss"], [])
    book.record("loss", torch.tensor(math.nan), weight=torch.tensor(0))
    book.record("loss", torch.tensor([2.0, 4.0]), weight=torch.tensor(10))
    book.end_epoch()
    assert book.latest() == {"loss": 3.0}


@given(
    st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=6), min_size=1, max_size=8),
    st.booleans(),
)
def test_any_split_into_batches_gives_the_mean_of_one_big_batch(batches, on_device: bool) -> None:
    whole = [value for batch in batches for value in batch]
    by_mean, by_sequence = Book(), Book()
    for batch in batches:
        mean = torch.tensor(batch, dtype=torch.float64).mean()
        by_mean.record("loss", mean if on_device else float(mean), weight=len(batch))
        by_sequence.record("loss", torch.tensor(batch) if on_device else batch)
    by_mean.end_epoch()
    by_sequence.end_epoch()
    expected = pytest.approx(math.fsum(whole) / len(whole), rel=1e-9, abs=1e-9)
    assert by_mean.latest()["loss"] == expected
    assert by_sequence.latest()["loss"] == expected


def test_children_flush_into_the_epoch_of_their_parent() -> None:
    parent, child = Book(), Book()
    for value in (1.0, 2.0):
        child.record("loss", value)
        parent.flush(children=[child, child])
    parent.record("loss", 9.0)
    child.record("loss", 3.0)
    parent.flush(children=[child])
    assert child.history("loss") == {0: 1.0, 1: 2.0, 2: 3.0}
    assert parent.history("loss") == {2: 9.0}
    parent.flush(children=[child])
    assert (parent.epoch, child.epoch) == (2, 2)


def test_a_flush_without_children_does_not_change_them() -> None:
    parent, child = Book(), Book()
    child.record("loss", 1.0)
    parent.record("loss", 1.0)
    parent.flush()
    assert child.history("loss") == {}


def test_children_end_the_epoch_with_their_parent() -> None:
    parent, child = Book(), Book()
    parent.end_epoch()
    child.record("loss", 1.0)
    parent.end_epoch(children=[child])
    assert child.history("loss") == {1: 1.0}
    assert (parent.epoch, child.epoch) == (2, 2)


def history_of(book: Book) -> tuple[object, ...]:
    return book.histories(), book.epoch, book.step, book.names


@pytest.mark.parametrize(
    "through",
    [
        copy.deepcopy,
        copy.copy,
        lambda book: pickle.loads(pickle.dumps(book)),
        lambda book: _loaded(json.loads(json.dumps(book.state_dict(), allow_nan=False))),
    ],
    ids=["deepcopy", "copy", "pickle", "json"],
)
def test_a_copied_or_saved_book_continues_like_the_original(through) -> None:
    book = flushed({"a": 1 / 3, "b": math.nan}, {"a": 2.0}, {"a": math.inf})
    book.end_step()
    book.record("a", torch.tensor(1.0), weight=3)
    twin = through(book)
    assert repr(history_of(twin)) == repr(history_of(book))
    for each in (book, twin):
        each.record("a", 5.0)
        each.end_epoch()
    assert repr(history_of(twin)) == repr(history_of(book))
    twin.record("a", 0.0)
    twin.end_epoch()
    assert 4 not in book.history("a")


def _loaded(state: dict[str, object]) -> Book:
    book = Book()
    book.load_state_dict(state)
    return book


def test_saving_does_not_change_the_book() -> None:
    book = Book()
    for _ in range(3):
        book.record("a", torch.tensor(0.1))
        book.state_dict()
    book.end_epoch()
    assert book.latest()["a"] == pytest.approx(0.1, rel=1e-7)


@pytest.mark.parametrize("state", [{}, {"history": []}, {"history": {"a": [[0, "x", 1]]}}])
def test_a_state_that_cannot_be_read_changes_nothing(state: dict[str, object]) -> None:
    book = flushed({"a": 1.0})
    with pytest.raises(
        MetricError, match=r"the saved metrics cannot be read: .* Load the result of Book.state_dict"
    ):
        book.load_state_dict(state)
    assert book.latest() == {"a": 1.0}


def test_several_flushes_of_one_metric_are_merged_at_the_end_of_the_epoch():
    now = [0.0]
    book = Book(clock=lambda: now[0])
    for _ in range(3):
        for value in (1.0, 3.0):
            now[0] += 1.0
            book.record("a", value)
            book.flush()
        book.end_epoch()
    assert book.history("a") == {0: 2.0, 1: 2.0, 2: 2.0}
    assert book.epoch == 3
    assert book.durations == {0: 2.0, 1: 2.0, 2: 2.0}
    assert book.eta(5) == 4.0
