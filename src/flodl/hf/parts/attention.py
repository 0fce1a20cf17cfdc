"""Self-attention through torch's fused kernels, and the bias that hides padding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flodl.core import HFError
from flodl.graph import FlowBuilder, Graph

from ..config import EncoderConfig


class SelfAttention(nn.Module):
    """Project the hidden states to queries, keys and values, and attend.

    `mask` is added to the attention scores; None means that every token attends to every token.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden = config.sizes.hidden
        self.num_heads = config.sizes.heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.dropout = config.dropout.attention

    def forward(self, hidden: Tensor, *, mask: Tensor | None = None) -> Tensor:
        query, key, value = (
            split_heads(project(hidden), self.num_heads) for project in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return join_heads(context)


def split_heads(value: Tensor, num_heads: int) -> Tensor:
    """[batch, length, hidden] to [batch, heads, length, hidden / heads]."""
    return value.reshape(*value.shape[:-1], num_heads, -1).transpose(-3, -2)


def join_heads(value: Tensor) -> Tensor:
    """[batch, heads, length, width] to [batch, length, heads · width]."""
    return value.transpose(-3, -2).flatten(-2)


def padding_bias(hidden: Tensor, *, attention_mask: Tensor | None) -> Tensor | None:
    """Return what to add to attention scores, [batch, 1, 1, length]: the lowest number hides a token.

    Without an attention mask there is nothing to add. The mask is never read on the host.
    """
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        raise HFError(
            f"attention_mask has shape {tuple(attention_mask.shape)}. Pass one value for each token: "
            f"{tuple(hidden.shape[:2])}."
        )
    dtype = attention_dtype(hidden)
    hides = attention_mask[:, None, None, :] == 0
    return torch.zeros(hides.shape, dtype=dtype, device=hidden.device).masked_fill(hides, lowest(dtype))


def attention_dtype(hidden: Tensor) -> torch.dtype:
    """Return the type that attention runs in, which autocast may lower."""
    device = hidden.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return hidden.dtype


def lowest(dtype: torch.dtype) -> float:
    """Return a number that hides a token and stays finite if it is cast to bfloat16."""
    return max(torch.finfo(dtype).min, torch.finfo(torch.bfloat16).min)


def attention(config: EncoderConfig, core: nn.Module, *refs: str, dropout: bool = True) -> Graph:
    """Self-attention with its output projection, without the residual."""
    hidden = config.sizes.hidden
    flow = FlowBuilder().input(*refs).through(core).using(*refs).through(nn.Linear(hidden, hidden))
    if dropout:
        flow.through(nn.Dropout(config.dropout.hidden))
    return flow.label("attention").build()
