"""BERT: post-norm layers, learned absolute positions, a pooler on the first token."""

from ...heads import Head
from ...parts.initialization import initialize
from ...registry import Family
from .keys import keys
from .model import build, read_config

FAMILY = Family("bert", "Bert", tuple(Head), read_config, build, keys, initialize)
