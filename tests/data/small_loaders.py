"""Small data and loaders over it, for several test files."""

import numpy as np
import torch
from torch.utils.data import Dataset

from flodl.data import Loader, Normalize, RandomCrop, RandomFlip

COUNT = 26


IMAGES = torch.randint(
    0, 256, (COUNT, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


LABELS = torch.arange(COUNT)


AUGMENT = [RandomCrop(1), RandomFlip(), Normalize([0.5] * 3, [0.25] * 3)]


class Noisy(Dataset):
    """Items that use every global generator, as transforms of images do."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        import random

        return torch.tensor(
            [index, random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64
        )


def noisy_transform(sample):
    image, label = sample
    return image.float() + torch.rand(()), label


def loader(**settings):
    return Loader((IMAGES, LABELS), **{"batch_size": 4, "seed": 5, **settings})


def everything(loader, epochs=1):
    return [batch for _ in range(epochs) for batch in loader]


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


SETTINGS = {
    "resident": {"augment": AUGMENT},
    "streaming": {"augment": AUGMENT, "mode": "streaming"},
    "workers": {"augment": AUGMENT, "mode": "streaming", "num_workers": 2},
    "transform": {"transform": noisy_transform},
    "transform in workers": {"transform": noisy_transform, "num_workers": 2},
    "dropping": {"drop_last": True},
}
