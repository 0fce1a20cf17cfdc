"""Packed tokens as padded rows, on the device: nothing is read on the host, and shapes depend on the slot."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flodl.core import HFError


class Rows(NamedTuple):
    """How the tokens of a packed batch lie in padded rows [sequences, longest], one row per sentence."""

    token: Tensor
    """The token of each place, [sequences · longest]; any token where there is none."""
    place: Tensor
    """The place of each token, [tokens]; padding after the sentences has place 0."""
    length: Tensor
    """The number of tokens in each row, [sequences]; 0 where there is no sentence."""
    longest: int

    @property
    def real(self) -> Tensor:
        """Whether there is a token at each place, [sequences, longest]."""
        return torch.arange(self.longest, device=self.length.device) < self.length[:, None]

    def spread(self, packed: Tensor) -> Tensor:
        """[1, tokens, …] to [sequences, longest, …]; places without a token contain some other token."""
        return packed[0].index_select(0, self.token).view(len(self.length), self.longest, *packed.shape[2:])

    def join(self, rows: Tensor) -> Tensor:
        """[sequences, longest, …] to [1, tokens, …]; padding after the sentences becomes some token."""
        return rows.flatten(0, 1).index_select(0, self.place)[None]


def rows_of(cu_seqlens: Tensor, tokens: int, longest: int) -> Rows:
    """Return the places of a packed batch.

    >>> rows = rows_of(torch.tensor([0, 3, 5, 5, 37, 64], dtype=torch.int32), tokens=64, longest=32)
    >>> rows.length, rows.spread(torch.arange(64)[None])[1, :2]
    (tensor([3, 2, 0]), tensor([3, 4]))
    """
    sequences = num_sequences(cu_seqlens, tokens, longest)
    # A copy, and below all of it: Inductor's searchsorted on CUDA takes no slices (torch 2.11).
    bounds = cu_seqlens[: sequences + 1].to(torch.int64, copy=True)
    start = bounds[:-1]
    step = torch.arange(longest, device=cu_seqlens.device)
    token = (start[:, None] + step).clamp(max=tokens - 1).flatten()
    index = torch.arange(tokens, device=cu_seqlens.device)
    row = torch.searchsorted(bounds, index, right=True) - 1
    inside = row < sequences
    row = row.clamp(max=sequences - 1)
    place = torch.where(inside, row * longest + index - start[row], 0)
    return Rows(token, place, bounds[1:] - start, longest)


def to_rows(packed: Tensor, cu_seqlens: Tensor, longest: int, *, fill: float = 0.0) -> Tensor:
    """[1, tokens, …] to [sequences, longest, …], with `fill` where there is no token.

    >>> cu_seqlens = torch.tensor([0, 3, 5, 7, 9], dtype=torch.int32)
    >>> to_rows(torch.arange(9)[None], cu_seqlens, 5, fill=-1)
    tensor([[ 0,  1,  2, -1, -1],
            [ 3,  4, -1, -1, -1]])
    """
    rows = rows_of(cu_seqlens, packed.shape[1], longest)
    real = rows.real.reshape(*rows.real.shape, *[1] * (packed.dim() - 2))
    return torch.where(real, rows.spread(packed), fill)


def num_sequences(cu_seqlens: Tensor, tokens: int, longest: int) -> int:
    """Return the number of sequences in the slot, from the shape of `cu_seqlens`."""
    sequences = len(cu_seqlens) - 1 + -tokens // longest
    if sequences < 1:
        raise HFError(
            f"cu_seqlens has {len(cu_seqlens)} values for {tokens} tokens and sentences of at most "
            f"{longest}; expected the tensors that flodl.hf.packing.pack makes."
        )
    return sequences
