"""XLM-RoBERTa as a graph: the same computation as RoBERTa."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config import EncoderConfig
from ..roberta import model as roberta

build = roberta.build


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Read the config.json of an XLM-RoBERTa checkpoint."""
    return roberta.read_config(raw, "xlm-roberta")
