"""DistilBERT: BERT with half the layers, without token types and without a pooler."""

from ...heads import Head
from ...registry import Family
from .keys import keys
from .model import build, initialize, read_config

FAMILY = Family("distilbert", "DistilBert", tuple(Head), read_config, build, keys, initialize)
