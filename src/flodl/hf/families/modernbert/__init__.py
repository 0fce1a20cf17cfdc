"""ModernBERT: pre-norm layers with rotary positions, gated feed-forward, and mostly local attention."""

from ...heads import Head
from ...registry import Family
from .initialization import initialize
from .keys import keys
from .model import build
from .options import read_config

FAMILY = Family("modernbert", "ModernBert", tuple(Head), read_config, build, keys, initialize)
