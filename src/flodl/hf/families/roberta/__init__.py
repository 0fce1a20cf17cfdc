"""RoBERTa: BERT with positions that count real tokens, and heads without a pooler."""

from ...heads import Head
from ...parts.initialization import initialize
from ...registry import Family
from .keys import keys
from .model import build, read_config

FAMILY = Family("roberta", "Roberta", tuple(Head), read_config, build, keys, initialize)
