"""DeBERTa v2 and v3: attention scores from content and relative positions."""

from ...heads import Head
from ...parts.initialization import initialize
from ...registry import Family
from .keys import keys
from .model import build, read_config

FAMILY = Family("deberta-v2", "DebertaV2", tuple(Head), read_config, build, keys, initialize)
