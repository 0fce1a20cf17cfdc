"""Self-attention through torch's fused kernels, and the bias that hides padding."""

from __future__ import annotations

from torch import Tensor, nn

from flodl.core import HFError
from flodl.graph import FlowBuilder, Graph

from ..config import EncoderConfig
from .masks import attention_dtype, hiding_bias
from .packed import Packed, attend, rate_of


class SelfAttention(nn.Module):
    """Project the hidden states to queries, keys and values, and attend.

    `mask` is added to the attention scores, or says where the sentences of a packed batch are; None means
    that every token attends to every token.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden = config.sizes.hidden
        self.num_heads = config.sizes.heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(config.dropout.attention)

    def forward(self, hidden: Tensor, *, mask: Tensor | Packed | None = None) -> Tensor:
        query, key, value = (
            split_heads(project(hidden), self.num_heads) for project in (self.query, self.key, self.value)
        )
        return join_heads(attend(query, key, value, mask, dropout=rate_of(self.dropout)))


def split_heads(value: Tensor, num_heads: int) -> Tensor:
    """[batch, length, hidden] to [batch, heads, length, hidden / heads]."""
    return value.reshape(*value.shape[:-1], num_heads, -1).transpose(-3, -2)


def join_heads(value: Tensor) -> Tensor:
    """[batch, heads, length, width] to [batch, length, heads · width]."""
    return value.transpose(-3, -2).flatten(-2)


def padding_bias(
    hidden: Tensor, *, attention_mask: Tensor | None, packed: Packed | None = None
) -> Tensor | Packed | None:
    """Return what to add to attention scores, [batch, 1, 1, length]: the lowest number hides a token.

    Without an attention mask there is nothing to add. The mask is never read on the host. For a packed batch,
    return where its sentences are.
    """
    if packed is not None:
        return packed.with_mask(hidden)
    if attention_mask is None:
        return None
    if attention_mask.shape != hidden.shape[:2]:
        raise HFError(
            f"attention_mask has shape {tuple(attention_mask.shape)}. Pass one value for each token: "
            f"{tuple(hidden.shape[:2])}."
        )
    return hiding_bias(attention_mask[:, None, None, :] == 0, attention_dtype(hidden))


def attention(config: EncoderConfig, core: nn.Module, *refs: str, dropout: bool = True) -> Graph:
    """Self-attention with its output projection, without the residual."""
    hidden = config.sizes.hidden
    flow = FlowBuilder().input(*refs).through(core).using(*refs).through(nn.Linear(hidden, hidden))
    if dropout:
        flow.through(nn.Dropout(config.dropout.hidden))
    return flow.label("attention").build()
