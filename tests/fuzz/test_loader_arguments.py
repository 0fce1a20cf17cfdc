"""Every combination of a source and arguments is either rejected or honored, and can be resumed anywhere."""

import json
from itertools import chain

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

import flodl
from flodl.core import DataError
from flodl.data import Loader
from flodl.data.sampling import samplers

COUNT = 23


class Map(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.tensor(index)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(COUNT))


SOURCES = {
    "tensor": lambda: torch.arange(COUNT),
    "map": Map,
    "list": lambda: [torch.tensor(number) for number in range(COUNT)],
    "iterable": Stream,
    "generator": lambda: iter(torch.arange(COUNT)),
    "list of batches": lambda: list(torch.arange(COUNT).split(5)),
    "DataLoader": lambda: DataLoader(Map(), batch_size=5),
    "shuffled DataLoader": lambda: DataLoader(Map(), batch_size=5, shuffle=True),
    "unbatched DataLoader": lambda: DataLoader(Map(), batch_size=None),
    "tuple": lambda: TensorDataset(torch.arange(COUNT)),
}
CHOICES = {
    "batch_size": [1, 4, 16, 23, 40, None],
    "shuffle": [None, True, False],
    "drop_last": [False, True],
    "seed": [None, 0, 7],
    "sampler": [None, list(range(0, COUNT, 2)), lambda epoch: range(10 + epoch)],
    "shuffle_buffer": [0, 8],
    "mode": ["auto", "streaming", "resident"],
    "collate": [None, default_collate],
}


def rows_of(batches):
    parts = (batch[0] if isinstance(batch, tuple | list) else batch for batch in batches)
    return list(chain.from_iterable(part.flatten().tolist() for part in parts))


def test_arguments_are_rejected_or_honored(fuzz):
    def check(rng):
        kind = rng.choice(list(SOURCES))
        given = {name: rng.choice(choices) for name, choices in CHOICES.items() if rng.random() < 0.4}
        size = given.pop("batch_size", 4)
        size = None if kind == "list of batches" else size
        try:
            loader = Loader(SOURCES[kind](), size, **given)
            batches = [rows_of([batch]) for batch in loader]
        except DataError:
            return
        rows = list(chain(*batches))
        if size is not None:
            expected = {size} if given.get("drop_last") else {size, len(rows) % size or size}
            assert set(map(len, batches)) <= expected, batches
        if given.get("drop_last"):
            assert size is not None
        if given.get("sampler") is not None:
            assert set(rows) <= {*range(0, COUNT, 2), *range(10)}
        elif not given.get("drop_last"):
            assert sorted(rows) == list(range(COUNT))
        if given.get("shuffle") and len(rows) > 10:
            assert rows != sorted(rows)
        if given.get("shuffle") is False:
            assert rows == sorted(rows)

    fuzz(check)


def test_any_position_can_be_resumed_with_any_seed_and_any_order(fuzz, monkeypatch):
    def check(rng):
        monkeypatch.setattr(samplers, "MAX_SORTED", rng.choice([4, 2**24]))
        count, sizes = rng.randrange(9, 60), [rng.randrange(1, 9) for _ in range(2)]
        settings = {"mode": rng.choice(["resident", "streaming"]), "drop_last": rng.random() < 0.3}
        settings |= {"shuffle": rng.random() < 0.8}
        flodl.manual_seed(rng.randrange(2**40))
        data = torch.arange(count)
        whole = Loader(data, sizes[0], **settings)
        whole.set_epoch(epoch := rng.randrange(4))
        order = Loader(data, count, **settings, seed=whole.seed)
        order.set_epoch(epoch)
        expected = next(iter(order)).tolist()
        seen = []
        for _, batch in zip(range(rng.randrange(1 + count // sizes[0])), whole):
            seen += batch.tolist()
        state = json.loads(json.dumps(whole.state_dict()))
        if state["epoch"] != epoch:
            return
        flodl.manual_seed(rng.randrange(2**40))
        resumed = Loader(data, sizes[1], **{**settings, "mode": rng.choice(["resident", "streaming"])})
        resumed.load_state_dict(state)
        seen += rows_of(resumed)
        assert seen == expected[: len(seen)]
        assert count - len(seen) < (sizes[1] if settings["drop_last"] else 1)

    fuzz(check)
