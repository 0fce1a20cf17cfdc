"""Whether the seed of a loader can change its batches."""

import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from flodl.core import CursorError
from flodl.data import Compose, Loader, Normalize, RandomCrop, RandomFlip

ROWS = torch.arange(40.0).view(20, 2)
IMAGES = torch.rand(6, 1, 8, 8)
NORMALIZE = Normalize([0.5], [0.1])


class Rows(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return ROWS[index]


def to_float(batch):
    return batch.float()


def brighten(batch, chance):
    return batch + chance.uniform().view(-1, 1, 1, 1)


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        (ROWS, {}),
        (TensorDataset(ROWS), {}),
        (Subset(TensorDataset(ROWS), [3, 1]), {}),
        ([(row, 1.0) for row in ROWS], {}),
        (ROWS, {"shuffle": None, "sampler": [3, 1, 2]}),
        (ROWS, {"shuffle": None, "sampler": torch.utils.data.SequentialSampler(ROWS)}),
        (IMAGES, {"augment": NORMALIZE}),
        (IMAGES, {"augment": [RandomCrop(0), RandomFlip(1.0), Compose(NORMALIZE)]}),
        (IMAGES, {"augment": [to_float, NORMALIZE]}),
        ([ROWS[:5], ROWS[5:]], {"batch_size": None, "shuffle": None}),
    ],
)
def test_it_cannot_where_nothing_is_drawn(source, settings):
    arguments = {"batch_size": 4, "shuffle": False, **settings}
    loaders = [Loader(source, **arguments, seed=seed) for seed in (0, 1)]
    assert not any(loader.depends_on_seed for loader in loaders)
    for one, other in zip(*loaders, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        (ROWS, {"shuffle": True}),
        (ROWS, {"shuffle": None, "sampler": lambda epoch: torch.randperm(20)}),
        (ROWS, {"shuffle": None, "sampler": torch.utils.data.RandomSampler(ROWS)}),
        (ROWS, {"transform": lambda row: row + torch.rand(())}),
        (ROWS, {"collate": torch.stack}),
        (Rows(), {}),
        (IMAGES, {"augment": RandomCrop(2)}),
        (IMAGES, {"augment": [NORMALIZE, RandomFlip()]}),
        (IMAGES, {"augment": Compose(Compose(brighten), NORMALIZE)}),
        (iter([1.0, 2.0]), {"shuffle": None}),
        ((row for row in ROWS), {"shuffle": None, "shuffle_buffer": 4}),
    ],
)
def test_it_can_where_something_may_be_drawn(source, settings):
    assert Loader(source, **{"batch_size": 4, "shuffle": False, **settings}).depends_on_seed


def test_a_cursor_of_another_seed_is_accepted_where_every_seed_has_the_same_batches():
    saved = Loader(ROWS, 8, shuffle=False, seed=1)
    rest = iter(saved)
    next(rest)
    loader = Loader(ROWS, 8, shuffle=False, seed=2)
    loader.load_state_dict(saved.state_dict())
    assert loader.seed == 2
    assert torch.equal(torch.cat(list(loader)), torch.cat(list(rest)))
    with pytest.raises(CursorError, match="saved with seed=1"):
        Loader(ROWS, 8, shuffle=True, seed=2).load_state_dict(Loader(ROWS, 8, seed=1).state_dict())
