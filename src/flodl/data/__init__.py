"""Data for training."""

from .augment import Compose, Normalize, RandomCrop, RandomFlip
from .chance import Chance
from .datasets import cifar10, fashion_mnist, mnist, read_idx, tiny_shakespeare
from .digits import digits
from .loader import Loader
from .samplers import RandomSampler, SequentialSampler, WeightedSampler
from .sources import TokenShards

__all__ = [
    "Chance",
    "Compose",
    "Loader",
    "Normalize",
    "RandomCrop",
    "RandomFlip",
    "RandomSampler",
    "SequentialSampler",
    "TokenShards",
    "WeightedSampler",
    "cifar10",
    "digits",
    "fashion_mnist",
    "mnist",
    "read_idx",
    "tiny_shakespeare",
]
