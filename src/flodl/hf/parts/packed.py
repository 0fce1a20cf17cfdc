"""Attention inside the sentences of a packed batch, where all tokens lie in one row."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flodl.core import HFError

from ..config import EncoderConfig
from ..kernels.constant import constant
from ..kernels.packed import fits, packed_attention
from ..packing.rows import Rows, num_sequences, rows_of
from .masks import attention_dtype, hiding_bias


class Packed(NamedTuple):
    """Where the sentences of a packed batch are; attention takes it in place of a mask."""

    cu_seqlens: Tensor
    longest: int
    starts: Tensor
    """The first token of each sentence, [sequences]; some token where there is no sentence."""
    rows: Rows | None
    """The sentences as padded rows, if something needs them."""
    mask: Tensor | None = None
    """What to add to the attention scores of rows; None if a kernel for packed tokens runs."""
    reach: int = -1
    """The largest distance between tokens that attend to each other; −1 for no limit."""

    def with_mask(self, hidden: Tensor) -> Packed:
        """Add the mask of rows where no kernel for packed tokens runs."""
        if self.rows is None:
            return self
        # A row without a sentence sees one token: fused kernels cannot normalize a row without any.
        hides = torch.arange(self.longest, device=hidden.device) >= self.rows.length[:, None].clamp(min=1)
        return self._changed(hiding_bias(hides[:, None, None, :], attention_dtype(hidden)), self.reach)

    def within(self, reach: int) -> Packed:
        """Limit attention to tokens at most `reach` apart."""
        if self.longest - 1 <= reach:
            return self
        if self.mask is None or self.rows is None:
            return self._changed(self.mask, reach)
        place = torch.arange(self.longest, device=self.mask.device)
        far = (place[:, None] - place).abs() > reach
        # Padding sees all tokens, for the same reason.
        hides = (far | (self.mask != 0)) & self.rows.real[:, None, :, None]
        return self._changed(hiding_bias(hides, self.mask.dtype), reach)

    def _changed(self, mask: Tensor | None, reach: int) -> Packed:
        # Not _replace: torch 2.11 cannot rebuild its result after a compiled call.
        return Packed(self.cu_seqlens, self.longest, self.starts, self.rows, mask, reach)


class Packing(nn.Module):
    """Read `cu_seqlens` and `longest`, the inputs of a packed batch; None for a padded batch.

    `positions` is the number of positions that the model has, None without a limit; `numbered` says whether
    it reads `position_ids`. If attention has no `kernel` for packed tokens, it runs on padded rows; if it is
    `windowed`, the kernel has to limit the distance between tokens, which its first versions cannot.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        positions: int | None = None,
        numbered: bool = True,
        kernel: bool = True,
        windowed: bool = False,
    ) -> None:
        super().__init__()
        self.positions, self.numbered, self.kernel = positions, numbered, kernel
        self.windowed = windowed
        self.width = config.sizes.hidden // config.sizes.heads

    def forward(
        self,
        hidden: Tensor,
        *,
        cu_seqlens: Tensor | None,
        longest: int | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None = None,
    ) -> Packed | None:
        if cu_seqlens is None and longest is None:
            return None
        if cu_seqlens is None or longest is None:
            raise HFError("a packed batch has cu_seqlens and longest. Make both with flodl.hf.packing.pack.")
        self._check(hidden, longest, attention_mask, position_ids)
        tokens = hidden.shape[1]
        starts = cu_seqlens[: num_sequences(cu_seqlens, tokens, longest)].clamp(max=tokens - 1)
        has_window = not self.windowed or fits(longest, self.width) or kernel_has_window()
        if self.kernel and has_kernel(hidden, self.width) and has_window:
            return Packed(cu_seqlens, longest, starts, None)
        return Packed(cu_seqlens, longest, starts, rows_of(cu_seqlens, tokens, longest))

    def _check(
        self, hidden: Tensor, longest: int, attention_mask: Tensor | None, position_ids: Tensor | None
    ) -> None:
        if attention_mask is not None:
            raise HFError("a packed batch takes no attention_mask: cu_seqlens says where the sentences are.")
        if self.numbered and position_ids is None:
            raise HFError("a packed batch needs position_ids, which start again with each sentence.")
        if self.positions is not None and longest > self.positions:
            raise HFError(
                f"a packed batch has room for sentences of {longest} tokens, but the model has positions for "
                f"{self.positions}. Use a Slot with longest={self.positions} or less."
            )
        if hidden.shape[0] != 1:
            raise HFError(f"a packed batch has one row of tokens, but input_ids has {hidden.shape[0]} rows.")

    def extra_repr(self) -> str:
        return f"positions={self.positions}, kernel={self.kernel}"


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | Packed | None, *, dropout: float
) -> Tensor:
    """Attention of [batch, heads, length, width], within each sequence of a padded or a packed batch."""
    if not isinstance(mask, Packed):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    value = drop_values(value, dropout)
    if mask.mask is None or mask.rows is None:
        return _attend_packed(query, key, value, mask)
    query, key, value = (in_rows(part, mask.rows) for part in (query, key, value))
    return out_of_rows(F.scaled_dot_product_attention(query, key, value, attn_mask=mask.mask), mask.rows)


def rate_of(dropout: nn.Dropout | nn.Identity) -> float:
    """Return the probability with which an attention drops its weights now: 0 in evaluation mode.

    It is in a module, so that code that changes all `nn.Dropout` of a model reaches it.

    >>> rate_of(nn.Dropout(0.1)), rate_of(nn.Dropout(0.1).eval()), rate_of(nn.Identity())
    (0.1, 0.0, 0.0)
    """
    return 0.0 if isinstance(dropout, nn.Identity) or not dropout.training else dropout.p


def drop_values(value: Tensor, dropout: float) -> Tensor:
    """Dropout of values [batch, heads, length, width], for whole tokens of a head.

    The kernel for packed tokens cannot drop attention weights. With values, outputs have the same mean and
    variance, but the queries of a sentence share what is dropped.
    """
    return value * F.dropout(torch.ones_like(value[..., :1]), dropout) if dropout else value


def in_rows(value: Tensor, rows: Rows) -> Tensor:
    """[1, heads, tokens, width] to [sequences, heads, longest, width]."""
    return rows.spread(value.transpose(1, 2)).transpose(1, 2)


def out_of_rows(value: Tensor, rows: Rows) -> Tensor:
    """[sequences, heads, longest, width] to [1, heads, tokens, width]."""
    return rows.join(value.transpose(1, 2)).transpose(1, 2)


def _attend_packed(query: Tensor, key: Tensor, value: Tensor, packed: Packed) -> Tensor:
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    bounds, longest = packed.cu_seqlens, packed.longest
    if fits(longest, query.shape[-1]):
        found = packed_attention(query, key, value, bounds, longest=longest, reach=packed.reach)
        return found.transpose(0, 1)[None]
    window = {"window_size": (packed.reach, packed.reach)} if packed.reach >= 0 else {}
    context = varlen_attn(query, key, value, bounds, bounds, longest, longest, **window)
    assert isinstance(context, Tensor)
    return context.transpose(0, 1)[None]


def varlen_attn(*args: Any, **options: Any) -> Any:
    """Call torch's kernel, whose module imports the compiler: models load faster without it."""
    from torch.nn.attention.varlen import varlen_attn as kernel

    return kernel(*args, **options)


@constant
def kernel_has_window() -> bool:
    """Return whether the kernel can limit the distance between tokens."""
    from torch.nn.attention import varlen

    return "window_size" in inspect.signature(varlen.varlen_attn).parameters


def has_kernel(hidden: Tensor, width: int) -> bool:
    """Return whether a kernel for packed tokens runs here: CUDA, 16 bits, and heads of this width."""
    return (
        hidden.is_cuda
        and attention_dtype(hidden) in (torch.bfloat16, torch.float16)
        and width % 8 == 0
        and width <= 256
        and _has_flash_attention(hidden.device)
    )


@constant
def _has_flash_attention(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
