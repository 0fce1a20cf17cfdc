"""Any loops, schedules and threads over prefetched and copied batches are ordered."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice

import hypothesis
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st

from flodl.data.batch import PositionedBatch
from flodl.data.transfer import pinned_copy, prefetch

from .cuda_loaders import KINDS, loader, simulated, train, write_elsewhere


def make(num_batches, *, fails_at=None, between=lambda: None):
    """Yield batches created on the current stream."""
    for number in range(num_batches):
        between()
        if number == fails_at:
            raise ValueError("this batch cannot be made")
        yield PositionedBatch(torch.full((4,), number, device="cuda"), number + 1)


def load(num_batches, *, fails_at=None):
    """Yield host batches of different sizes."""
    for number in range(num_batches):
        if number == fails_at:
            raise ValueError("this batch cannot be made")
        yield PositionedBatch(
            {"x": torch.full((number % 3 + 1, 2), number), "y": torch.tensor(number)}, number + 1
        )


def doubled(source):
    for handed in source:
        yield PositionedBatch({**handed.batch, "x": handed.batch["x"] * 2}, handed.position)


def runs(max_group, depth, num_batches, fails_at):
    """Return the three ways batches reach the device, each as a function that starts a loop."""
    device = torch.device("cuda", 0)
    beside = prefetch.Prefetcher(device, max_group=max_group)
    sent, sent_first = (
        pinned_copy.PinnedCopier(device, depth=depth, usable_bytes=lambda: None) for _ in range(2)
    )
    after = prefetch.Prefetcher(device, max_group=max_group)
    return [
        lambda: beside.run(make(num_batches, fails_at=fails_at)),
        lambda: sent.run(load(num_batches, fails_at=fails_at)),
        lambda: after.run(doubled(sent_first.run(load(num_batches, fails_at=fails_at)))),
    ]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@hypothesis.given(
    max_group=st.sampled_from([1, 2, 8]),
    depth=st.integers(1, 4),
    num_streams=st.sampled_from([1, 2, 32]),
    num_batches=st.integers(0, 20),
    fails_at=st.none() | st.integers(0, 20),
    loops=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 21), st.integers(0, 3)), max_size=5),
)
def test_any_loops_over_prefetched_and_copied_batches_are_ordered(
    max_group, depth, num_streams, num_batches, fails_at, loops
):
    with simulated(num_streams=num_streams) as cuda:
        begin, kept = runs(max_group, depth, num_batches, fails_at), []
        for which, stop, keep in loops:
            batches = begin[which]()
            with suppress(ValueError):
                for handed in islice(batches, stop):
                    train(handed.batch)
                    kept.append(handed.batch)
                    for earlier in kept:
                        train(earlier)
                    del kept[: len(kept) - keep], earlier, handed
            batches.close()
            write_elsewhere()
        assert cuda.races == []


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@hypothesis.given(
    kind=st.sampled_from(list(KINDS)),
    num_streams=st.sampled_from([2, 4, 32]),
    acts=st.lists(
        st.sampled_from(["next", "next", "next", "leave", "other", "rewind", "stream", "write", "forget"]),
        min_size=10,
        max_size=50,
    ),
)
def test_any_schedule_of_two_loaders_and_two_streams_is_ordered(kind, num_streams, acts):
    with simulated(num_streams=num_streams) as cuda:
        streams, loaders, kept = [cuda.current, torch.cuda.Stream()], [loader(kind), loader("own")], []
        batches = [iter(one) for one in loaders]
        for act in acts:
            with streams[0]:
                if act == "next":
                    kept.append(next(batches[0], ()))
                    train(kept[-1])
                elif act == "leave":
                    batches[0] = iter(loaders[0])
                elif act == "other":
                    loaders, batches = loaders[::-1], batches[::-1]
                elif act == "rewind":
                    loaders[0].rewind()
                    batches[0] = iter(loaders[0])
                elif act == "stream":
                    streams[1].wait_stream(streams[0])
                    streams.reverse()
                elif act == "write":
                    write_elsewhere()
                else:
                    for batch in kept:
                        train(batch)
                    batch = None
                    kept.clear()
        batches.clear()
        assert cuda.races == []


@contextmanager
def another_thread(cuda):
    """Yield a function that runs a call in a second thread and waits for it."""

    def there(function, *given):
        with cuda:
            return function(*given)

    with ThreadPoolExecutor(1) as pool:
        yield lambda function, *given: pool.submit(there, function, *given).result()


def use_in_two_threads(read, train_there):
    """Prepare batches while another thread trains on earlier ones and frees one in the middle."""
    held = []

    def between():
        if len(held) > 1:
            train_there(lambda: train(held.pop(0)))

    batches = prefetch.Prefetcher(torch.device("cuda", 0), max_group=4).run(make(20, between=between))
    for _ in range(20):
        held.append(read(next, batches).batch)
    batches.close()


def test_a_thread_may_read_for_the_training_thread(cuda):
    with another_thread(cuda) as read, another_thread(cuda) as train_there:
        use_in_two_threads(read, train_there)
    assert cuda.races == []


@pytest.mark.xfail(
    raises=AssertionError,
    reason="batches that the main thread reads are not kept for the stream that uses them",
)
def test_the_main_thread_may_read_for_another_thread(cuda):
    with another_thread(cuda) as train_there:
        use_in_two_threads(lambda function, *given: function(*given), train_there)
    assert cuda.races == []


def test_threads_without_record_stream_are_caught(cuda, monkeypatch):
    monkeypatch.setattr(prefetch, "record_use", lambda stream, batch: None)
    with another_thread(cuda) as read, another_thread(cuda) as train_there:
        use_in_two_threads(read, train_there)
    assert any("may still use what was there before" in race for race in cuda.races)
