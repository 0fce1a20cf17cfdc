"""Load data for training: sources, orders that can be resumed, augmentations and datasets."""

from .augment.augmentation import Compose
from .augment.images import Normalize, RandomCrop, RandomFlip
from .datasets import cifar10, digits, fashion_mnist, mnist, read_idx, tiny_shakespeare
from .description import describe_data
from .loader import Loader
from .sampling.by_length import LengthGroupedSampler
from .sampling.random_numbers import Chance
from .sampling.samplers import RandomSampler, SequentialSampler, WeightedSampler
from .sources import TokenShards
from .torch_loader import settled_order

__all__ = [
    "Chance",
    "Compose",
    "LengthGroupedSampler",
    "Loader",
    "Normalize",
    "RandomCrop",
    "RandomFlip",
    "RandomSampler",
    "SequentialSampler",
    "TokenShards",
    "WeightedSampler",
    "cifar10",
    "describe_data",
    "digits",
    "fashion_mnist",
    "mnist",
    "read_idx",
    "settled_order",
    "tiny_shakespeare",
]
