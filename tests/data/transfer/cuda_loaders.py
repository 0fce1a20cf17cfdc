"""Loaders of every kind, used on the simulated device."""

import importlib.util
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from flodl.data import Loader, Normalize, RandomCrop, RandomFlip
from flodl.data.batch import tensors_in

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
