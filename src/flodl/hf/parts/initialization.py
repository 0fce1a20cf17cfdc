"""Random initial weights, as the families were pretrained with."""

from __future__ import annotations

from collections.abc import Container, Iterator

import torch
from torch import nn

from ..config import EncoderConfig


@torch.no_grad()
def initialize(model: nn.Module, config: EncoderConfig, *, only: Container[str] | None = None) -> None:
    """Draw linear and embedding weights from a normal distribution; reset biases and norms.

    `only` holds the names of the parameters to initialize, such as those that a checkpoint does not have.
    """
    for name, module, leaf in _owners(model):
        if only is not None and name not in only:
            continue
        parameter = module.get_parameter(leaf)
        if leaf == "bias":
            parameter.zero_()
        elif isinstance(module, nn.LayerNorm):
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, config.initializer_range)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            parameter[module.padding_idx].zero_()


def _owners(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield each parameter once, with the module that has it first: tied weights are embeddings."""
    for name, _ in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        yield name, model.get_submodule(path), leaf
