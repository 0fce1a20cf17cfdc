"""Book and devices: nothing is read until a value is needed, and recorded values never change."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flodl.observe import Book


class NoHostReads(TorchDispatchMode):
    """Fail on the operation behind .item(), float(tensor), bool(tensor) and printing."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function is not torch.ops.aten._local_scalar_dense.default, "read from the device"
        return function(*args, **(kwargs or {}))


def test_the_guard_against_host_reads_works() -> None:
    with NoHostReads(), pytest.raises(AssertionError, match="read from the device"):
        torch.ones(()).item()


def test_nothing_is_read_from_the_device_until_a_value_is_needed() -> None:
    book = Book()
    with NoHostReads():
        for step in range(600):
            book.record("loss", torch.tensor(float(step)))
            book.record("mixed", torch.ones(3), weight=torch.tensor(2))
            book.record("mixed", 1.0, weight=0.5)
        book.flush(["loss"])
        book.record("loss", torch.tensor(1.0, requires_grad=True) * 2)
        book.end_epoch()
    assert book.latest() == pytest.approx({"loss": (599 * 600 / 2 + 2) / 601, "mixed": 1.0})


def test_the_source_may_be_overwritten_after_recording() -> None:
    book = Book()
    static = torch.tensor([1.0], dtype=torch.float64)
    for value in (1.0, 2.0, 6.0):
        static.fill_(value)
        book.record("loss", static)
    weight = torch.tensor(1.0, dtype=torch.float64)
    book.record("weighted", 5.0, weight=weight)
    book.record("weighted", 1.0)
    weight.fill_(100.0)
    static.fill_(-1.0)
    book.end_epoch()
    assert book.latest() == {"loss": 3.0, "weighted": 3.0}


def test_recording_keeps_no_autograd_graph_and_works_in_inference_mode() -> None:
    book = Book()
    parameter = torch.ones((), requires_grad=True)
    with torch.inference_mode():
        book.record("loss", torch.ones(()))
    for _ in range(300):
        book.record("loss", parameter * 1.0)
    assert not any(t.requires_grad for ts in book._pending["loss"].total._pending.values() for t in ts)
    book.end_epoch()
    assert book.latest() == {"loss": 1.0}


def test_books_are_fetched_together() -> None:
    books = [Book(), Book()]
    for value, book in enumerate(books):
        book.record("loss", torch.tensor(float(value)))
        book.end_epoch()
    books[0].fetch(books[1])
    with NoHostReads():
        assert [book.latest() for book in books] == [{"loss": 0.0}, {"loss": 1.0}]


def test_the_repr_does_not_read_the_device() -> None:
    book = Book()
    with NoHostReads():
        book.record("a", torch.tensor(1.0))
        assert repr(book) == "Book(epoch=0, step=0, names=['a'])"


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_values_are_recorded_without_synchronizing() -> None:
    book = Book()
    source = torch.zeros((), device="cuda")
    weight = torch.tensor(2, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            for step in range(600):
                source.fill_(step)
                book.record("loss", source)
                book.record("weighted", source, weight=weight)
                book.record("many", source.expand(4), weight=0.5)
                book.record("mixed", torch.tensor(1.0), weight=weight)
            book.flush(["loss"])
            book.end_epoch()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert book.latest() == {"loss": 299.5, "weighted": 299.5, "many": 299.5, "mixed": 1.0}
    assert book.trend("loss").values == [299.5, 299.5]
