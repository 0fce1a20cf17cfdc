"""On CUDA: the same samples and bits as on the CPU, no waiting, and a step that gathers for itself."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flodl.data import Chance, Loader, Normalize, RandomCrop, RandomFlip, TokenShards, WeightedSampler
from flodl.data.internals import backend_of
from flodl.data.sampling.order import MAX_SORTED, permutation, sample_keys

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

COUNT = 1000
IMAGES = torch.randint(
    0, 256, (COUNT, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
LABELS = torch.arange(COUNT) % 10
BYTES = [RandomCrop(4), RandomFlip()]
FULL = [*BYTES, Normalize([0.5] * 3, [0.25] * 3)]


def loader(**settings):
    return Loader((IMAGES, LABELS), **{"batch_size": 96, "seed": 5, "device": "cuda", **settings})


def two_epochs(given):
    batches = [batch for _ in range(2) for batch in given]
    given.close()
    return batches


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        for mine, its in zip(one, other):
            assert torch.equal(mine.cpu(), its.cpu())


@pytest.mark.parametrize("count", [1, 7, 4096, 50_000, 1_000_003])
def test_the_order_is_that_of_the_cpu(count):
    on_cuda = permutation(count, seed=3, epoch=7, device="cuda")
    assert torch.equal(on_cuda.cpu(), permutation(count, seed=3, epoch=7))


@pytest.mark.parametrize("mode", ["resident", "streaming"])
def test_a_long_order_is_that_of_the_cpu(mode):
    rows = torch.arange(MAX_SORTED + 1000, dtype=torch.int32)
    here, there = (Loader(rows, 2**20, seed=2, device=device, mode=mode) for device in ("cuda", "cpu"))
    found, expected = next(iter(here)).cpu(), next(iter(there))
    assert torch.equal(found, expected)
    if mode == "resident":
        here.rewind()
        here.begin_epoch()
        assert torch.equal(here.take(torch.arange(100, 200, device="cuda")).cpu(), expected[100:200])


def test_draws_are_those_of_the_cpu():
    keys = sample_keys(11, torch.arange(10_000))
    here, there = Chance(keys), Chance(keys.cuda())
    assert torch.equal(here.uniform(3), there.uniform(3).cpu())
    assert torch.equal(here.integers(9, 2), there.integers(9, 2).cpu())
    assert torch.equal(here.coin(0.3), there.coin(0.3).cpu())
    torch.testing.assert_close(here.normal(), there.normal().cpu())


def test_small_data_are_resident_and_equal_those_of_the_cpu():
    given = loader(augment=BYTES)
    assert given.mode == "resident"
    assert "free on cuda:0" in given.reason
    assert_same(two_epochs(given), two_epochs(loader(augment=BYTES, device="cpu")))


def test_weighted_samples_are_those_of_the_cpu():
    weights = torch.rand(COUNT, generator=torch.Generator().manual_seed(1))
    for replacement in (True, False):
        settings = {"sampler": WeightedSampler(weights, num_samples=500, replacement=replacement)}
        assert_same(two_epochs(loader(**settings)), two_epochs(loader(device="cpu", **settings)))


@pytest.mark.parametrize(
    "settings", [{}, {"num_workers": 2}, {"prefetch": 1}, {"prefetch": 8}, {"memory_cap": 1}], ids=str
)
def test_streaming_gives_the_bits_of_resident(settings):
    streamed = two_epochs(loader(augment=FULL, mode="streaming", **settings))
    assert_same(streamed, two_epochs(loader(augment=FULL)))
    assert streamed[0][0].is_cuda


def test_pinned_buffers_are_not_written_while_they_are_read():
    large = torch.arange(64, dtype=torch.float32).repeat_interleave(2_000_000).view(64, -1)
    busy = torch.randn(4096, 4096, device="cuda")
    extremes = []
    for rows in Loader(large, 4, shuffle=False, device="cuda", mode="streaming"):
        for _ in range(5):
            busy = (busy @ busy).clamp_(-1, 1)
        extremes.append(torch.stack([rows.amin(dim=1), rows.amax(dim=1)], dim=1))
    assert torch.cat(extremes).tolist() == [[row, row] for row in range(64)]


@pytest.mark.parametrize(
    "settings", [{}, {"mode": "streaming"}, {"mode": "streaming", "num_workers": 2}], ids=str
)
@pytest.mark.parametrize("stop", [1, 5, 11, 13])
def test_a_resumed_loader_gives_the_exact_next_batches(settings, stop):
    whole = two_epochs(loader(augment=FULL, **settings))
    first = loader(augment=FULL, **settings)
    seen = []
    while len(seen) < stop:
        for batch in first:
            seen.append(batch)
            if len(seen) == stop:
                break
    state = json.loads(json.dumps(first.state_dict()))
    first.close()
    resumed = loader(augment=FULL, **settings)
    resumed.load_state_dict(state)
    while resumed.epoch < 2:
        seen += list(resumed)
    resumed.close()
    assert_same(seen, whole)


@pytest.mark.parametrize("has_kernel", [False, True])
def test_nothing_waits_for_the_device(has_kernel):
    given = with_kernel(augment=FULL) if has_kernel else loader(augment=FULL)
    list(given)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            for _ in given:
                pass
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_captured_step_gathers_and_augments_for_itself():
    given = loader(augment=FULL, batch_size=100)
    expected = two_epochs(loader(augment=FULL, batch_size=100))
    positions = torch.arange(100, device="cuda")
    given.begin_epoch()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        given.take(positions)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        images, labels = given.take(positions)
        positions.add_(100)
    found = []
    for epoch in range(2):
        given.set_epoch(epoch)
        given.begin_epoch()
        positions.copy_(torch.arange(100))
        for _ in range(10):
            graph.replay()
            found.append((images.clone(), labels.clone()))
    assert_same(found, expected)


def test_data_larger_than_the_cap_are_streamed():
    given = loader(memory_cap=1000)
    assert given.mode == "streaming"
    assert given.reason.startswith("the data takes 3 MB, but memory_cap=1000 allows 1000 B of the ")
    list(given)
    assert backend_of(given).copier.num_ahead == 1


def test_data_that_do_not_fit_after_all_are_streamed():
    large = torch.zeros(64, 1_000_000)  # 256 MB
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    limit = torch.cuda.memory_reserved() + 192 * 2**20
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        given = Loader(large, 2, device="cuda", mode="resident")
        assert given.mode == "streaming"
        assert given.reason.startswith("the data did not fit on cuda:0 (CUDA out of memory")
        assert sum(len(rows) for rows in given) == 64
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "uint32"])
def test_windows_of_tokens_are_cut_on_the_device(tmp_path, dtype):
    import numpy as np

    path = tmp_path / "t.bin"
    np.random.default_rng(0).integers(0, min(np.iinfo(dtype).max, 10**6), 5000, endpoint=True).astype(
        dtype
    ).tofile(path)
    shards = TokenShards(path, 32, stride=8, dtype=dtype)
    resident, streamed = (Loader(shards, 16, device=device) for device in ("cuda", "cpu"))
    assert (resident.mode, streamed.mode) == ("resident", "streaming")
    assert_same(list(resident), list(streamed))


def test_a_model_learns_the_same_from_either_mode():
    def train(mode):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        losses = []
        for images, labels in loader(augment=FULL, mode=mode):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    assert torch.equal(train("resident"), train("streaming"))


MODES = pytest.mark.parametrize("mode", ["resident", "streaming"])


@MODES
def test_a_loop_that_is_left_early_harms_no_later_one(mode):
    whole = two_epochs(loader(augment=FULL))[:3]
    given = loader(augment=FULL, mode=mode)
    for _ in range(20):
        for batch in given:
            del batch
            break
        given.rewind()
        torch.full((4_000_000,), -1, device="cuda")  # what was let go of is written to at once
    assert_same([batch for batch, _ in zip(given, range(3))], whole)


@MODES
def test_memory_does_not_grow_with_the_lead_of_the_host(mode):
    rows = torch.zeros(256, 1_000_000)  # batches of 64 MB
    given = Loader(rows, 16, device="cuda", mode=mode, augment=Halved(ahead=True))
    busy = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        for batch in given:
            for _ in range(10):
                busy = (busy @ busy).clamp_(-1, 1)
            busy[0, 0] += batch.sum()
    assert torch.cuda.max_memory_allocated() - before < 12 * 64 * 2**20


class Halved:
    """An augmentation that says where it is called."""

    def __init__(self, *, ahead: bool) -> None:
        self.draws_from_chance = ahead
        self.streams: list[torch.cuda.Stream] = []

    def __call__(self, batch, chance):
        self.streams.append(torch.cuda.current_stream())
        return batch * 0.5 if isinstance(batch, torch.Tensor) else (batch[0] * 0.5, *batch[1:])


@MODES
@pytest.mark.parametrize("ahead", [False, True])
def test_only_what_draws_by_chance_alone_is_called_ahead(mode, ahead):
    augment = Halved(ahead=ahead)
    for number, _ in enumerate(loader(augment=augment, mode=mode)):
        assert len(augment.streams) == min(number + 1 + ahead, 11)
    beside = [stream != torch.cuda.current_stream() for stream in augment.streams]
    assert beside == [ahead] * 11


@MODES
def test_batches_that_are_kept_stay_as_they_were(mode):
    given = loader(augment=FULL, mode=mode)
    busy = torch.randn(2048, 2048, device="cuda")
    kept = []
    for batch in given:
        kept.append(batch)
        for _ in range(5):
            busy = (busy @ busy).clamp_(-1, 1)
    assert_same(kept, two_epochs(loader(augment=FULL))[: len(kept)])


def with_kernel(**settings):
    """Give a loader whose batches come from one kernel, at its beginning."""
    given = Loader(**{"source": (IMAGES, LABELS), "batch_size": 48, "seed": 5, "device": "cuda", **settings})
    list(given)
    backend_of(given).fused.wait()
    assert backend_of(given).fused.is_ready
    given.set_epoch(0)
    return given


CHAINS = {
    "crop": [RandomCrop(4, fill=3)],
    "flip": RandomFlip(0.3),
    "normalize": Normalize([0.5] * 3, [0.25] * 3),
    "bytes": BYTES,
    "flip and normalize": [RandomFlip(), [Normalize([0.5] * 3, [0.25] * 3)]],
    "all": [RandomCrop(4, fill=7), RandomFlip(), Normalize([0.4, 0.5, 0.6], [0.2, 0.25, 0.3])],
}


@MODES
@pytest.mark.parametrize("kind", [torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_one_kernel_gives_the_bits_of_all_the_augmentations(chain, kind, mode):
    source = (IMAGES.to(kind), LABELS.to(torch.uint16))
    there = Loader(source, 48, seed=5, device="cuda", augment=chain, mode=mode)
    backend_of(there).fused = None
    expected = [batch for _ in range(2) for batch in there]
    here = with_kernel(source=source, augment=chain, mode=mode)
    found = [batch for _ in range(2) for batch in here]
    assert_same(found, expected)
    for (x, _), (its_x, _) in zip(found, expected):
        assert (x.dtype, x.shape, x.stride()) == (its_x.dtype, its_x.shape, its_x.stride())


@MODES
def test_the_kernel_takes_over_by_itself(mode):
    given = loader(batch_size=48, augment=FULL, mode=mode)
    fused = backend_of(given).fused
    for number, _ in enumerate(given):
        assert fused.is_started == (number >= {"resident": 7, "streaming": 14}[mode])
    fused.wait()
    assert fused.is_ready


@MODES
def test_named_images_in_any_place_are_made_by_the_kernel(mode):
    named = {"y": LABELS, "x": IMAGES}
    augment = [RandomCrop(2, of="x"), RandomFlip(of="x")]
    here = with_kernel(source=named, augment=augment, mode=mode)
    there = Loader(named, 48, seed=5, augment=augment)
    ours, theirs = ([(batch["x"], batch["y"]) for batch in given] for given in (here, there))
    assert_same(ours, theirs)
    alone = with_kernel(source=IMAGES, augment=RandomFlip(), mode=mode)
    assert_same([[batch] for batch in alone], [[x] for x in Loader(IMAGES, 48, seed=5, augment=RandomFlip())])


def test_images_of_another_size_are_augmented_step_by_step():
    sizes = [*[32] * 20, *[16, 32] * 10]
    source = [(torch.randint(0, 256, (8, 3, size, size), dtype=torch.uint8),) for size in sizes]
    here, there = (Loader(source, None, device=device, augment=BYTES) for device in ("cuda", "cpu"))
    for number, (ours, theirs) in enumerate(zip(here, there)):
        assert_same([ours], [theirs])
        if number == 16:
            backend_of(here).fused.wait()
            assert backend_of(here).fused.is_ready


@MODES
def test_a_loader_with_the_kernel_is_resumed_rewound_and_left_anywhere(mode):
    given = with_kernel(augment=FULL, mode=mode)
    whole = [batch for _ in range(3) for batch in given]
    again = with_kernel(augment=FULL, mode=mode)
    again.set_epoch(1)
    for number, _ in enumerate(again):
        if number == 6:
            state = json.loads(json.dumps(again.state_dict()))
            break
    again.rewind()
    assert_same(list(again), whole[21:42])
    given.load_state_dict(state)
    assert_same(list(given), whole[28:42])


def test_an_epoch_may_be_longer_than_the_one_before():
    class Growing:
        def order(self, count, *, seed, epoch, device):
            return torch.arange(800 + 48 * (epoch // 2), device=device)

        def length(self, count):
            return None

    here, there = (loader(batch_size=48, sampler=Growing(), device=d, augment=BYTES) for d in ("cuda", "cpu"))
    for _ in range(6):
        assert_same(list(here), list(there))
        backend_of(here).fused.wait()


@pytest.mark.parametrize(
    "augment",
    [
        [RandomFlip(), RandomCrop(4)],
        [Normalize([0.5] * 3, [0.25] * 3), RandomFlip()],
        [RandomFlip(), Halved(ahead=True)],
        [RandomFlip(), RandomFlip()],
    ],
    ids=["another order", "normalised first", "one's own", "twice"],
)
def test_other_augmentations_are_called_one_by_one(augment):
    given = loader(augment=augment)
    assert backend_of(given).fused is None
    assert len(list(given)) == 11


def test_an_error_is_told_when_its_batch_is_due():
    given = loader(batch_size=48)
    take, taken = backend_of(given).source.take, []

    def fails_once(indices):
        taken.append(indices)
        if len(taken) == 12:
            raise ValueError("no twelfth batch")
        return take(indices)

    backend_of(given).source.take = fails_once
    batches = iter(given)
    got = [next(batches) for _ in range(11)]
    with pytest.raises(ValueError, match="no twelfth batch"):
        next(batches)
    assert (len(got), given.position) == (11, 11 * 48)
    assert_same(got, list(loader(batch_size=48))[:11])
    assert len(list(given)) == 21  # an iteration that was left early starts again


def test_small_batches_are_made_several_at_a_time_and_large_ones_singly():
    for batch_size, expected in ((48, [3, 7, 7, *[15] * 4, 21]), (COUNT // 5, [3, 5, 5, 5, 5])):
        given = loader(batch_size=batch_size, augment=None)
        take, taken = backend_of(given).source.take, []
        backend_of(given).source.take = lambda indices, take=take, taken=taken: (
            taken.append(1),
            take(indices),
        )[1]
        assert [len(taken) for _ in given][: len(expected)] == expected
    rows = Loader(torch.zeros(64, 4_000_000), 8, device="cuda")  # batches of 128 MB
    take, large = backend_of(rows).source.take, []
    backend_of(rows).source.take = lambda indices: (large.append(1), take(indices))[1]
    assert [len(large) for _ in rows] == [2, 3, 4, 5, 6, 7, 8, 8]


def test_the_stream_may_change_from_batch_to_batch():
    given, other = loader(batch_size=48, augment=FULL), torch.cuda.Stream()
    batches, found = iter(given), []
    for number in range(len(given)):
        with torch.cuda.stream(other if number % 3 == 1 else torch.cuda.default_stream()):
            found.append([part.clone() for part in next(batches)])
    torch.cuda.synchronize()
    assert_same(found, list(loader(batch_size=48, augment=FULL)))


def test_the_next_epoch_is_prepared_where_nothing_can_change_it():
    for sampler, expected in ((None, (5, 1)), (WeightedSampler(torch.ones(COUNT)), None)):
        given = loader(augment=FULL, sampler=sampler)
        list(given)
        prepared = backend_of(given).upcoming
        assert (prepared and prepared.identity[:2]) == expected
    plain, there = loader(augment=BYTES), loader(augment=BYTES, device="cpu")
    for epoch in (0, 3, 4, 5, 0, 1):
        plain.set_epoch(epoch)
        there.set_epoch(epoch)
        assert_same(list(plain), list(there))


@MODES
@pytest.mark.parametrize("augment", [None, BYTES, Halved(ahead=True)], ids=["bare", "own", "foreign"])
def test_a_batch_is_not_written_over_while_a_step_that_reads_it_still_waits(mode, augment):
    """The host lets go of each batch long before the device gets to its step, over the ends of epochs too."""
    calm = loader(batch_size=48, augment=augment, mode=mode)
    expected = [batch for _ in range(4) for batch in calm]
    expected = [(x.double().sum(), y.sum()) for x, y in expected]
    given = loader(batch_size=48, augment=augment, mode=mode)
    busy = torch.randn(4096, 4096, device="cuda")
    found = []
    for _ in range(4):
        for x, y in given:
            for _ in range(3):
                busy = (busy @ busy).clamp_(-1, 1)
            found.append((x.double().sum(), y.sum()))
            del x, y
    assert_same(found, expected)
