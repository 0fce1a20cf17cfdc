"""Readings of CPU, memory and GPUs during training, taken off the training thread."""

from .drivers import find_gpus
from .gpus import Gpu, GpuReader
from .host import Host
from .sampler import ResourceSampler, read_resources

__all__ = ["Gpu", "GpuReader", "Host", "ResourceSampler", "find_gpus", "read_resources"]
