"""XLM-RoBERTa: RoBERTa with a multilingual vocabulary."""

from ...heads import Head
from ...parts.initialization import initialize
from ...registry import Family
from .keys import keys
from .model import build, read_config

FAMILY = Family("xlm-roberta", "XLMRoberta", tuple(Head), read_config, build, keys, initialize)
