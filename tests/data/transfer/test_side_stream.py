"""Batches prefetched and copied during training, on a simulated device that detects unordered accesses."""

from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from flodl.data import Loader, Normalize, RandomCrop, WeightedSampler
from flodl.data.augment import fused
from flodl.data.internals import backend_of
from flodl.data.sampling import samplers
from flodl.data.transfer import pinned_copy, prefetch

from .cuda_loaders import (
    EVERY_KIND,
    KINDS,
    loader,
    simulated,
    simulated_cuda,
    train,
    use_much,
    write_elsewhere,
)


@EVERY_KIND
@pytest.mark.parametrize("max_sorted", [samplers.MAX_SORTED, 4], ids=["sorted", "on demand"])
def test_a_plain_loop_is_ordered_and_yields_the_samples_of_the_cpu(cuda, kind, max_sorted, monkeypatch):
    monkeypatch.setattr(samplers, "MAX_SORTED", max_sorted)
    given, there = loader(kind), loader(kind, device="cpu")
    assert given.mode == ("streaming" if "streamed" in kind else "resident")
    for _ in range(2):
        found = []
        for images, labels in given:
            assert images.is_cuda
            train((images, labels))
            found.append((images.tolist(), labels.tolist()))
            del images, labels
        assert found == [(images.tolist(), labels.tolist()) for images, labels in there]
    assert cuda.races == []


@EVERY_KIND
def test_a_loop_may_be_left_and_restarted_and_the_loader_deleted(cuda, kind):
    for _ in range(2):
        given = [loader(kind)]
        if given[0].mode == "resident":
            given[0].begin_epoch()  # so the order is allocated on the training stream
        use_much(given.pop())
        write_elsewhere()
    assert cuda.races == []


@EVERY_KIND
def test_batches_may_be_kept_and_used_again(cuda, kind):
    given, kept = loader(kind), []
    for _ in range(2):
        for number, batch in enumerate(given):
            train(batch)
            kept.append(batch)
            if number % 5 == 3:
                for earlier in kept:
                    train(earlier)
                del kept[::2], earlier
    assert cuda.races == []


def switched(given, streams, *, wait):
    """Train on several streams in turn; with `wait`, each waits for the previous one."""
    last = streams[0]
    for epoch in range(3):
        batches = iter(given)
        for number in range(11):
            now = streams[(number // (1 + epoch) + epoch) % len(streams)]
            if wait:
                now.wait_stream(last)
            last = now
            with now:
                batch = next(batches, ())
                train(batch)
                del batch


@EVERY_KIND
def test_training_may_switch_to_another_stream(cuda, kind):
    switched(loader(kind), [cuda.current, torch.cuda.Stream(), torch.cuda.Stream()], wait=True)
    assert cuda.races == []


@pytest.mark.parametrize("kind", ["bare", "own", "foreign", "streamed", "streamed own"])
def test_batches_may_be_used_in_unsynchronized_streams(cuda, kind):
    switched(loader(kind), [cuda.current, torch.cuda.Stream()], wait=False)
    assert cuda.races == []


@EVERY_KIND
def test_two_loaders_may_alternate_even_with_the_same_side_stream(kind):
    with simulated(num_streams=1) as cuda:
        shared = KINDS[kind]()
        training, evaluation = loader(kind, **shared), loader(kind, shuffle=False, batch_size=7, **shared)
        for _ in range(2):
            for number, batch in enumerate(training):
                train(batch)
                del batch
                if number % 4 == 2:
                    for number_there, other in enumerate(evaluation):
                        train(other)
                        del other
                        if number == number_there:
                            break
        assert cuda.races == []


@pytest.mark.parametrize("kind", ["bare", "own", "foreign", "when due"])
def test_positions_may_be_taken_before_between_and_after_batches(cuda, kind):
    given = loader(kind)
    for epoch in (0, 1, 1, 3):
        given.set_epoch(epoch)
        given.begin_epoch()
        train(given.take(torch.arange(4, device="cuda")))
        for number, batch in enumerate(given):
            train(batch)
            train(given.take(torch.arange(4, device="cuda")))
            if number == 4 - epoch:
                break
        train(given.take(torch.arange(4, device="cuda")))
    assert cuda.races == []


@pytest.mark.parametrize("kind", ["own", "streamed own"])
def test_the_kernel_reads_and_writes_in_order(cuda, kind, monkeypatch):
    launches = simulate_the_kernel(cuda, monkeypatch)
    given = loader(kind)
    list(given)
    backend_of(given).fused.wait()
    use_much(given)
    assert len(launches) > 30
    assert cuda.races == []


def simulate_the_kernel(cuda, monkeypatch):
    """Make the kernel ready after the second batch, and only record what it reads and writes."""
    launches = []

    class Launch:
        def __getitem__(self, grid):
            return self.launch

        def launch(self, *given, **_constants):
            launches.append(given)
            cuda.run("gather_and_augment", reads=given[:-1], writes=given[-1:], line=cuda.current.number)

    monkeypatch.setattr(fused, "COMPILE_AFTER", 2)
    monkeypatch.setattr(fused.Kernel, "compile", lambda kernel: setattr(kernel, "launch", Launch()))
    return launches


def test_batches_with_more_images_than_samples_are_left_to_the_augmentations(cuda, monkeypatch):
    launches = simulate_the_kernel(cuda, monkeypatch)
    batches = [(torch.arange(2), torch.rand(6, 3, 8, 8))] * 8
    given = Loader(batches, None, device="cuda", augment=Normalize([0.5] * 3, [0.25] * 3, of=1))
    for _, images in given:
        backend_of(given).fused.wait()
        assert len(images) == 6
    assert not launches


def test_a_changed_crop_is_left_to_the_augmentations(cuda, monkeypatch):
    launches, crop = simulate_the_kernel(cuda, monkeypatch), RandomCrop(2)
    given = loader("bare", augment=crop)
    list(given)
    backend_of(given).fused.wait()
    list(given)
    before = len(launches)
    assert before
    crop.padding = 3
    list(given)
    assert len(launches) == before


def test_resident_data_is_stale_after_a_write_to_its_tensors(cuda):
    images, labels = torch.zeros(8, 2), torch.arange(8)
    given = Loader({"x": images, "y": labels}, 4, device="cuda")
    list(given)
    assert given.mode == "resident"
    assert not given.is_stale
    labels += 1
    assert given.is_stale
    assert not Loader({"x": images, "y": labels}, 4, device="cuda").is_stale
    for where in ({"device": "cpu"}, {"device": "cuda", "mode": "streaming"}):
        read_there = Loader(labels, 4, **where)
        labels += 1
        assert not read_there.is_stale


def test_a_new_order_is_written_when_no_stream_reads_it(cuda):
    given = loader("bare", sampler=WeightedSampler([1.0] * 40))
    given.begin_epoch()
    use_much(given)
    train(given.take(torch.arange(4, device="cuda")))
    assert cuda.races == []


@contextmanager
def failing(given, number, error):
    """Make one batch fail, counted from now."""
    take, calls = backend_of(given).source.take, count(1)

    def fails(indices):
        if next(calls) == number:
            raise error
        return take(indices)

    backend_of(given).source.take = fails
    yield
    backend_of(given).source.take = take


@pytest.mark.parametrize("number", [1, 3, 10])
@pytest.mark.parametrize("kind", [*KINDS])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_accesses_stay_ordered_after_an_error_or_interrupt(cuda, kind, number, error):
    given, expected = loader(kind), [labels.tolist() for _, labels in loader(kind)]
    found = []

    def read():
        for item in given.with_positions():
            train(item.batch)
            found.append(item.batch[1].tolist())
            del item

    with failing(given, number, error("this batch cannot be made")), pytest.raises(error, match="cannot be"):
        read()
    if error is ValueError:  # raised when its batch is due; an interrupt is raised at once
        assert len(found) == number - 1
    assert given.position == 4 * len(found)
    assert cuda.current.number == 0
    write_elsewhere()
    read()
    assert found == expected
    assert cuda.races == []


def test_an_epoch_that_runs_out_of_memory_is_drawn_at_its_start(cuda):
    given, there = loader("own"), loader("own", device="cpu")
    drawn = backend_of(given).draw_epoch

    def too_much(epoch):
        if epoch.number > given.epoch:
            raise torch.OutOfMemoryError
        return drawn(epoch)

    backend_of(given).draw_epoch = too_much
    for _ in range(3):
        ours, theirs = ([labels.tolist() for _, labels in one] for one in (given, there))
        assert ours == theirs
    assert cuda.races == []


def no_wait(_stream):
    pass


def prepares_outside(given, _monkeypatch):
    """Draw the next epoch on the side stream after the last batch, as an earlier version did."""
    backend = backend_of(given)
    batches, backend.draws_next_epoch = backend.batches, False

    def then_prepare(epoch):
        yield from batches(epoch)
        with backend.prefetcher.side.stream:
            backend.upcoming = backend.draw_epoch(replace(epoch, number=epoch.number + 1))

    backend.batches = then_prepare


def events_say_nothing(_given, monkeypatch):
    plain, nothing = prefetch.Group.__init__, SimpleNamespace(record=no_wait, wait=no_wait)
    monkeypatch.setattr(
        prefetch.Group, "__init__", lambda group, **other: plain(group, done=nothing, **other)
    )


BREAKS = {
    "batches are made without waiting": (
        "bare",
        lambda given, _: setattr(backend_of(given).prefetcher.side.stream, "wait_stream", no_wait),
        "where stream 0 may still use what was there before",
    ),
    "batches are used without waiting": (
        "bare",
        events_say_nothing,
        "on 0 reads what stream 1 may not have written yet",
    ),
    "the next epoch is drawn outside": (
        "bare",
        prepares_outside,
        "where stream 0 may still use what was there before",
    ),
    "a loop is left without waiting": (
        "own",
        lambda given, patch: patch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: True),
        "on 0 writes where stream 1 may still use what was there before",
    ),
    "batches are sent without waiting": (
        "streamed",
        lambda given, _: setattr(backend_of(given).copier.side.stream, "wait_stream", no_wait),
        "on 1 writes where stream 0 may still use what was there before",
    ),
    "batches are received without waiting": (
        "streamed",
        lambda given, patch: patch.setattr(
            pinned_copy.PinnedCopier, "receive", lambda _, handed, arrived: handed
        ),
        "on 0 reads what stream 1 may not have written yet",
    ),
    "buffers are filled without waiting": (
        "streamed",
        lambda given, patch: patch.setattr(simulated_cuda().Event, "synchronize", lambda event: None),
        "writes what stream 1 may still read",
    ),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_loader_is_caught(cuda, broken, monkeypatch):
    kind, breaks, told = BREAKS[broken]
    given = [loader(kind)]
    if given[0].mode == "resident":
        given[0].begin_epoch()
    breaks(given[0], monkeypatch)
    use_much(given.pop())
    write_elsewhere()
    assert any(told in race for race in cuda.races), cuda.races
