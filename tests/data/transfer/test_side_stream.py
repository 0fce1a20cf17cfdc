"""Batches prefetched and copied during training, on a simulated device that detects unordered accesses."""

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from flodl.data import Loader, Normalize, RandomCrop, RandomFlip, WeightedSampler
from flodl.data.augment import fused
from flodl.data.batch import PositionedBatch, tensors_in
from flodl.data.transfer import pinned_copy, prefetch

IMAGES = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(40)


class Dimmed:
    """A user's augmentation, which may be called ahead or only when its batch is due."""

    def __init__(self, *, ahead):
        self.draws_from_chance = ahead

    def __call__(self, batch, chance):
        return batch[0] * chance.uniform().view(-1, 1, 1, 1), batch[1]


def chain():
    """flodl's own augmentations, created for each test because they cache tensors of a device."""
    return [RandomCrop(2), RandomFlip(), Normalize([0.5] * 3, [0.25] * 3)]


KINDS = {
    "bare": dict,
    "own": lambda: {"augment": chain()},
    "foreign": lambda: {"augment": Dimmed(ahead=True)},
    "when due": lambda: {"augment": Dimmed(ahead=False)},
    "streamed": lambda: {"mode": "streaming"},
    "streamed own": lambda: {"mode": "streaming", "augment": chain()},
    "streamed when due": lambda: {"mode": "streaming", "augment": Dimmed(ahead=False)},
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def loader(kind, **settings):
    known = {"batch_size": 4, "seed": 5, "device": "cuda", **KINDS[kind]()}
    return Loader((IMAGES, LABELS), **{**known, **settings})


def train(batch):
    """Read a batch on the current stream."""
    for part in tensors_in(batch):
        part.sum()


def write_elsewhere():
    """Let training allocate freed memory and write to it."""
    torch.full((8,), -1, device="cuda")


def simulated_cuda():
    """Return the module next to this file, which is not on the path."""
    path = Path(__file__).with_name("simulated_cuda.py")
    if path.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[path.stem])
    return sys.modules[path.stem]


@contextmanager
def simulated(**settings):
    """Yield a simulated device, active inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        device = simulated_cuda().SimulatedCuda(**settings)
        device.replace(patch)
        with device:
            yield device


@pytest.fixture
def cuda():
    with simulated() as device:
        yield device


def use_much(given):
    """Use a loader for several epochs, some left early, with other work in between."""
    for stop in (None, 1, None, 6):
        for number, batch in enumerate(given):
            train(batch)
            del batch
            if number == stop:
                given.rewind()
                break
        write_elsewhere()


@EVERY_KIND
def test_a_plain_loop_is_ordered_and_yields_the_samples_of_the_cpu(cuda, kind):
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
    given._backend._fused.wait()
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

    monkeypatch.setattr(fused, "_COMPILE_AFTER", 2)
    monkeypatch.setattr(fused._Kernel, "compile", lambda kernel: setattr(kernel, "_launch", Launch()))
    return launches


def test_batches_with_more_images_than_samples_are_left_to_the_augmentations(cuda, monkeypatch):
    launches = simulate_the_kernel(cuda, monkeypatch)
    batches = [(torch.arange(2), torch.rand(6, 3, 8, 8))] * 8
    given = Loader(batches, None, device="cuda", augment=Normalize([0.5] * 3, [0.25] * 3, of=1))
    for _, images in given:
        given._backend._fused.wait()
        assert len(images) == 6
    assert not launches


def test_a_changed_crop_is_left_to_the_augmentations(cuda, monkeypatch):
    launches, crop = simulate_the_kernel(cuda, monkeypatch), RandomCrop(2)
    given = loader("bare", augment=crop)
    list(given)
    given._backend._fused.wait()
    list(given)
    before = len(launches)
    assert before
    crop.padding = 3
    list(given)
    assert len(launches) == before


@pytest.mark.parametrize("place", [{"pin_memory": True}, {"device": "cuda"}], ids=["pinned", "on the device"])
def test_an_iterable_may_overwrite_its_own_memory(cuda, place):
    def refilled():
        memory = torch.zeros(4, **place)
        for number in range(12):
            yield memory.fill_(number)

    found = []
    for batch in Loader(refilled(), None, device="cuda", prefetch=3):
        train(batch)
        found.append(batch.tolist())
        del batch
    assert found == [[number] * 4 for number in range(12)]
    assert cuda.races == []


def test_an_in_place_augmentation_does_not_change_a_list_of_batches(cuda):
    batches = [torch.full((4,), number, device="cuda") for number in range(5)]
    given = Loader(batches, None, device="cuda", augment=lambda batch: batch.add_(10))
    for _ in range(2):
        assert [batch[0].item() for batch in given] == [10, 11, 12, 13, 14]


class Numbers:
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor(index)

    def as_stream(self):
        return (self[index] for index in range(24))


FILLED_AGAIN = {
    "samples": lambda collate: Loader(Numbers(), 4, shuffle=False, device="cuda", collate=collate),
    "iterable": lambda collate: Loader(Numbers().as_stream(), 4, device="cuda", collate=collate),
    "torch loader": lambda collate: Loader(
        DataLoader(Numbers(), batch_size=4, collate_fn=collate), None, device="cuda"
    ),
    "transform": lambda collate: Loader(
        DataLoader(Numbers(), batch_size=4), None, device="cuda", transform=lambda batch: collate([*batch])
    ),
}


@pytest.mark.parametrize("kind", FILLED_AGAIN)
@pytest.mark.parametrize(
    "memory", [{"pin_memory": True}, {"device": "cuda"}], ids=["pinned", "on the device"]
)
def test_a_collate_function_may_reuse_its_memory(cuda, kind, memory):
    memory = torch.empty(4, dtype=torch.int64, **memory)
    found = []
    for batch in FILLED_AGAIN[kind](lambda samples: memory.copy_(torch.stack(samples))):
        train(batch)
        found += batch.tolist()
        del batch
    assert found == list(range(24))
    assert cuda.races == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: Loader(Numbers(), 4, device="cuda"),
        lambda: Loader(Numbers().as_stream(), 4, device="cuda"),
        lambda: Loader(DataLoader(Numbers(), batch_size=4), None, device="cuda"),
        lambda: Loader(torch.arange(24), 4, device="cuda", mode="streaming"),
    ],
)
def test_fresh_memory_is_not_copied_twice(cuda, make, monkeypatch):
    run, told = pinned_copy.PinnedCopier.run, []
    monkeypatch.setattr(
        pinned_copy.PinnedCopier, "run", lambda *given, fresh: told.append(fresh) or run(*given, fresh=fresh)
    )
    assert len(list(make())) == 6
    assert told == [True]


def test_growing_batches_stay_within_the_memory_cap(cuda):
    sizes = [1, 1, 1, 1, 40, 1, 1, 60, 1, 1]
    sent = []

    def batches():
        for size in sizes:
            sent.append(size)
            yield torch.zeros(size, dtype=torch.int64)

    given = Loader(batches(), None, device="cuda", prefetch=4, memory_cap=8 * 100)
    waiting = []
    for number, _ in enumerate(given, start=1):
        waiting.append(len(sent) - number)
    assert waiting == [4, 3, 2, 2, 2, 2, 1, 1, 1, 0]
    assert given._backend._copier.num_ahead == 1


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
    take, calls = given._backend.source.take, count(1)

    def fails(indices):
        if next(calls) == number:
            raise error
        return take(indices)

    given._backend.source.take = fails
    yield
    given._backend.source.take = take


@pytest.mark.parametrize("number", [1, 3, 10])
@pytest.mark.parametrize("kind", [*KINDS])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_accesses_stay_ordered_after_an_error_or_interrupt(cuda, kind, number, error):
    given, expected = loader(kind), [labels.tolist() for _, labels in loader(kind)]
    found = []

    def read():
        for images, labels in given:
            train((images, labels))
            found.append(labels.tolist())

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
    drawn = given._backend._draw_epoch

    def too_much(epoch):
        if epoch.number > given.epoch:
            raise torch.OutOfMemoryError
        return drawn(epoch)

    given._backend._draw_epoch = too_much
    for _ in range(3):
        ours, theirs = ([labels.tolist() for _, labels in one] for one in (given, there))
        assert ours == theirs
    assert cuda.races == []


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


def no_wait(_stream):
    pass


def prepares_outside(given, _monkeypatch):
    """Draw the next epoch on the side stream after the last batch, as an earlier version did."""
    backend = given._backend
    batches, backend._can_go_on = backend.batches, False

    def then_prepare(epoch):
        yield from batches(epoch)
        with backend._prefetcher.side.stream:
            backend._next = backend._draw_epoch(replace(epoch, number=epoch.number + 1))

    backend.batches = then_prepare


def events_say_nothing(_given, monkeypatch):
    plain, nothing = prefetch._Group.__init__, SimpleNamespace(record=no_wait, wait=no_wait)
    monkeypatch.setattr(
        prefetch._Group, "__init__", lambda group, **other: plain(group, done=nothing, **other)
    )


BREAKS = {
    "batches are made without waiting": (
        "bare",
        lambda given, _: setattr(given._backend._prefetcher.side.stream, "wait_stream", no_wait),
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
        lambda given, _: setattr(given._backend._copier._side.stream, "wait_stream", no_wait),
        "on 1 writes where stream 0 may still use what was there before",
    ),
    "batches are received without waiting": (
        "streamed",
        lambda given, patch: patch.setattr(
            pinned_copy.PinnedCopier, "_receive", lambda _, handed, arrived: handed
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
