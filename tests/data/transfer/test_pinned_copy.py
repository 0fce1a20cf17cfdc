"""Copies through pinned memory: user code may reuse its memory, and the memory cap holds."""

import pytest
import torch
from torch.utils.data import DataLoader

from flodl.data import Loader
from flodl.data.internals import backend_of
from flodl.data.transfer import pinned_copy

from .cuda_loaders import train


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
    assert backend_of(given).copier.num_ahead == 1
