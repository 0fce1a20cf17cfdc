"""ALBERT: few layers with shared weights, applied many times, and narrow embeddings."""

from ...heads import Head
from ...parts.initialization import initialize
from ...registry import Family
from .keys import keys
from .model import build, read_config

FAMILY = Family("albert", "Albert", tuple(Head), read_config, build, keys, initialize)
