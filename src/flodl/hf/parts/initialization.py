"""Random initial weights, as the families were pretrained with."""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import nn

from ..config import EncoderConfig


@torch.no_grad()
def initialize(model: nn.Module, config: EncoderConfig, *, only: Container[str] | None = None) -> None:
    """Draw linear and embedding weights from a normal distribution; reset biases and norms.

    `only` holds the names of the parameters to initialize, such as those that a checkpoint does not have.
    """
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            full = f"{prefix}.{name}" if prefix else name
            if only is not None and full not in only:
                continue
            if name == "bias":
                parameter.zero_()
            elif isinstance(module, nn.LayerNorm):
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, config.initializer_range)
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                parameter[module.padding_idx].zero_()
