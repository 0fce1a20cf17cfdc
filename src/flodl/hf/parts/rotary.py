"""Attention with rotary positions, to all tokens or to those nearby."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..config import EncoderConfig
from .attention import join_heads
from .masks import attention_dtype, hiding_bias
from .packed import Packed, attend, rate_of
from .tables import ComputedTable


class Rotation(ComputedTable):
    """Cosines and sines of the angles by which positions rotate: [2, batch, 1, length, width]."""

    def __init__(self, width: int, theta: float) -> None:
        exponent = torch.arange(0, width, 2, dtype=torch.float32, device="cpu") / width
        super().__init__(1.0 / theta**exponent)

    def forward(self, hidden: Tensor, *, position_ids: Tensor | None) -> Tensor:
        if position_ids is None:
            position_ids = torch.arange(hidden.shape[1], device=hidden.device)[None]
        angle = position_ids[:, None, :, None].float() * self.table
        angle = torch.cat([angle, angle], dim=-1)
        return torch.stack([angle.cos(), angle.sin()]).to(hidden.dtype)


def rotate(value: Tensor, rotation: Tensor) -> Tensor:
    """Rotate queries or keys, in float32."""
    cosine, sine = rotation.unbind()
    exact = value.float()
    left, right = exact.chunk(2, dim=-1)
    return (exact * cosine + torch.cat([-right, left], dim=-1) * sine).to(value.dtype)


class RotaryAttention(nn.Module):
    """Self-attention from one joint projection, with rotated queries and keys."""

    def __init__(self, config: EncoderConfig, *, bias: bool) -> None:
        super().__init__()
        hidden = config.sizes.hidden
        self.num_heads = config.sizes.heads
        self.joint = nn.Linear(hidden, 3 * hidden, bias=bias)
        self.dropout = nn.Dropout(config.dropout.attention)

    def forward(
        self,
        hidden: Tensor,
        *,
        mask: Tensor | Packed | None,
        rotation: Tensor,
        sees: Tensor | None = None,
    ) -> Tensor:
        parts = self.joint(hidden).unflatten(-1, (3, self.num_heads, -1)).unbind(dim=-3)
        query, key, value = (part.transpose(-3, -2) for part in parts)
        query, key = rotate(query, rotation), rotate(key, rotation)
        if sees is not None:
            query = query * sees
        return join_heads(attend(query, key, value, mask, dropout=rate_of(self.dropout)))


class LocalRotaryAttention(RotaryAttention):
    """The same with the mask and the rotation of local layers; queries that see no real token become zero."""

    def forward(  # type: ignore[override]
        self,
        hidden: Tensor,
        *,
        window: Tensor | Packed | None,
        sees: Tensor | None,
        local_rotation: Tensor,
    ) -> Tensor:
        return super().forward(hidden, mask=window, rotation=local_rotation, sees=sees)


class Window(nn.Module):
    """The mask of local layers: tokens attend up to `reach` tokens away, on top of the padding mask.

    A token without a real token nearby is padding, and attends to all tokens alike (see `Sight`).
    """

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.reach = reach

    def forward(
        self, hidden: Tensor, *, mask: Tensor | Packed | None, sees: Tensor | None
    ) -> Tensor | Packed | None:
        if isinstance(mask, Packed):
            return mask.within(self.reach)
        length = hidden.shape[1]
        if length - 1 <= self.reach:
            return mask
        hides = far(length, self.reach, hidden.device)[None, None]
        if mask is not None and sees is not None:
            hides = (hides | (mask != 0)) & (sees != 0)
        return hiding_bias(hides, attention_dtype(hidden))

    def extra_repr(self) -> str:
        return f"reach={self.reach}"


class Sight(nn.Module):
    """Return 1 for tokens with a real token nearby and 0 for others, [batch, 1, length, 1].

    Hiding every token from a query would make fused kernels compute wrong gradients, so that its query is
    set to zero instead.
    """

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.reach = reach

    def forward(self, hidden: Tensor, *, mask: Tensor | Packed | None) -> Tensor | None:
        length = hidden.shape[1]
        if mask is None or isinstance(mask, Packed) or length - 1 <= self.reach:
            return None
        hides = far(length, self.reach, hidden.device) | (mask != 0)
        return (~hides.all(dim=-1, keepdim=True)).to(attention_dtype(hidden))


def far(length: int, reach: int, device: torch.device) -> Tensor:
    """Return which pairs of tokens are more than `reach` apart, [length, length]."""
    place = torch.arange(length, device=device)
    return (place[:, None] - place).abs() > reach
