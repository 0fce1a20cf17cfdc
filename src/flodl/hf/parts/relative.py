"""Disentangled attention: scores of relative positions as a bias for fused attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flodl.core import HFError

from ..config import EncoderConfig
from ..kernels import disentangled
from .attention import join_heads, split_heads
from .masks import attention_dtype, hiding_bias
from .packed import Packed, drop_values, in_rows, out_of_rows, rate_of
from .placement import Placement, flex_attention, gather_keys, pair_rows
from .tables import ComputedTable


def log_buckets(distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """Map distances to buckets: one each up to half the buckets, then logarithmically wider ones.

    >>> log_buckets(torch.tensor([-300, -3, 0, 3, 300, 511]), 256, 512)
    tensor([-207,   -3,    0,    3,  207,  255])
    """
    half = num_buckets // 2
    near = (distance < half) & (distance > -half)
    size = torch.where(near, half - 1, distance.abs())
    far = torch.ceil(torch.log(size / half) / math.log((max_distance - 1) / half) * (half - 1)) + half
    return torch.where(size <= half, distance.to(far.dtype), far * distance.sign()).long()


class RelativePositions(ComputedTable):
    """The rows of the relative embedding for the distances in a sequence.

    Returns an index with an entry for each distance key − query, from 1 − length to length − 1, and some more
    up to a multiple of 8, because matmuls with an odd number of columns are slow. It depends on the length
    only; its table is computed once, on the CPU, so that every device uses the same buckets.
    """

    def __init__(self, span: int, num_buckets: int, max_distance: int) -> None:
        super().__init__(_rows(span, num_buckets, max_distance))

    def forward(self, hidden: Tensor, *, packed: Packed | None) -> Tensor:
        length = hidden.shape[1] if packed is None else packed.longest
        reach = len(self.table) // 2
        width = (2 * length + 6) // 8 * 8
        distance = torch.arange(length - 1, length - 1 - width, -1, device=hidden.device)
        return self.table[distance.clamp(-reach, reach) + reach]


class RelativeEmbeddings(nn.Module):
    """The embedding of relative positions, normalized if the config says so."""

    def __init__(self, config: EncoderConfig, rows: int | None, *, normalized: bool) -> None:
        super().__init__()
        hidden = config.sizes.hidden
        self.embeddings = None if rows is None else nn.Embedding(rows, hidden)
        self.norm = nn.LayerNorm(hidden, eps=config.norm_eps) if normalized else None

    def forward(self, hidden: Tensor) -> Tensor | None:
        if self.embeddings is None:
            return None
        weight = self.embeddings.weight
        return weight if self.norm is None else self.norm(weight)


class DisentangledAttention(nn.Module):
    """Self-attention whose scores add query · key, query · position (c2p) and position · key (p2c).

    `placement` is how scores of positions become scores of keys. "skew" computes one for each distance, of
    which those of the keys are a view; "gather" one for each row of the embedding, of which long texts have
    fewer; "flex" looks them up inside FlexAttention (compiled, without dropout of attention); "fused" inside
    a kernel for inference on CUDA. "auto" is "fused" in 16 bits where nothing needs gradients, and else
    "skew".
    """

    placement: Placement = "auto"

    def __init__(
        self, config: EncoderConfig, *, terms: tuple[str, ...], shared: bool, relative: bool
    ) -> None:
        super().__init__()
        hidden = config.sizes.hidden
        self.num_heads = config.sizes.heads
        self.terms = terms
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        own = relative and not shared
        self.position_key = nn.Linear(hidden, hidden) if own and "c2p" in terms else None
        self.position_query = nn.Linear(hidden, hidden) if own and "p2c" in terms else None
        self.position_dropout = nn.Dropout(config.dropout.hidden)
        self.dropout = nn.Dropout(config.dropout.attention)
        scores = hidden // self.num_heads * (1 + len(terms))
        self.scale = 1 / float(torch.tensor(scores, dtype=torch.float32, device="cpu").sqrt())

    def forward(
        self,
        hidden: Tensor,
        *,
        mask: Tensor | None,
        real: Tensor | None,
        packed: Packed | None = None,
        relative: Tensor | None = None,
        distance: Tensor | None = None,
    ) -> Tensor:
        query, key, value = (
            split_heads(project(hidden), self.num_heads) for project in (self.query, self.key, self.value)
        )
        dropout = rate_of(self.dropout)
        rows = None if packed is None else packed.rows
        if rows is not None:
            value, dropout = drop_values(value, dropout), 0.0
            query, key, value = (in_rows(part, rows) for part in (query, key, value))
        positions = None
        if relative is not None and distance is not None and self.terms:
            positions = self.position_dropout(relative)
            if self._is_fused(query, key, value, relative, dropout):
                context = self._fused(query, key, value, positions, distance, real)
                return context if rows is None else rows.join(context)
        if real is not None:
            query = query * real
        bias = mask
        if positions is not None and distance is not None:
            if self.placement == "flex" and rows is None and not dropout:
                return self._flex(query, key, value, positions, distance, mask, real)
            bias = self._bias(query, key, positions, distance)
            if mask is not None and real is not None:
                bias = torch.addcmul(mask, bias, real)
        context = F.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, dropout_p=dropout, scale=self.scale
        )
        return join_heads(context if rows is None else out_of_rows(context, rows))

    def _is_fused(self, query: Tensor, key: Tensor, value: Tensor, relative: Tensor, dropout: float) -> bool:
        if self.placement not in ("auto", "fused"):
            return False
        if self.placement == "auto" and torch.compiler.is_exporting():
            return False  # an exported program runs without flodl
        reason = disentangled.unsupported(query)
        if reason is None and dropout:
            reason = f"it cannot drop attention weights (dropout {dropout})"
        if reason is None and torch.is_grad_enabled():
            own = [part.weight for part in (self.position_key, self.position_query) if part is not None]
            if any(part.requires_grad for part in (query, key, value, relative, *own)):
                reason = "it has no gradients; call the model under torch.no_grad()"
        if self.placement == "fused" and reason is not None:
            raise HFError(f'placement "fused" cannot be used: {reason}. Choose "auto" or "skew".')
        # Exact float32 cannot use tensor cores inside the kernel; other libraries are faster without them.
        return reason is None and (self.placement == "fused" or query.dtype != torch.float32)

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        relative: Tensor,
        distance: Tensor,
        real: Tensor | None,
    ) -> Tensor:
        rows = None
        if len(distance) <= len(relative):
            relative = F.embedding(distance, relative)
        else:
            # 16 bits are half of the reads; a model without buckets may have more rows.
            rows = distance.to(torch.int16 if len(relative) <= 2**15 else torch.int32)
        # Scores without scale may be too large for float16.
        scale = self.scale if query.dtype == torch.float16 else 1.0
        c2p, p2c = self._by_row(query, key, relative, scale=scale)
        return disentangled.attention(
            query,
            key,
            value,
            c2p=c2p,
            p2c=p2c,
            rows=rows,
            real=real,
            scale=self.scale,
            position_scale=self.scale / scale,
        )

    def _bias(self, query: Tensor, key: Tensor, relative: Tensor, distance: Tensor) -> Tensor:
        """Return the scores of positions, [batch, heads, length, length]."""
        terms = []
        if self.placement == "gather" and len(distance) > len(relative):
            c2p, p2c = self._by_row(query, key, relative, scale=self.scale)
            rows = pair_rows(distance, query.shape[-2])
            terms += [] if c2p is None else [gather_keys(c2p, rows)]
            terms += [] if p2c is None else [gather_keys(p2c, rows.mT).mT]
            return terms[0] if len(terms) == 1 else terms[0] + terms[1]
        if "c2p" in self.terms:
            position = self._at_distances(self.position_key or self.key, relative, distance)
            terms.append(align(torch.einsum("bhqd,hrd->bhqr", query, position)))
        if "p2c" in self.terms:
            position = self._at_distances(self.position_query or self.query, relative, distance).flip(1)
            scores = torch.einsum("bhkd,hrd->bhkr", key, position)
            terms.append(align(scores, skip=len(distance) - 2 * key.shape[-2] + 1).transpose(-1, -2))
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]

    def _by_row(
        self, query: Tensor, key: Tensor, relative: Tensor, *, scale: float
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the scores of each row of the embedding: by query (c2p) and by key (p2c)."""
        c2p = p2c = None
        if "c2p" in self.terms:
            position = self._split((self.position_key or self.key)(relative), scale)
            c2p = torch.einsum("bhqd,hrd->bhqr", query, position)
        if "p2c" in self.terms:
            position = self._split((self.position_query or self.query)(relative), scale)
            p2c = torch.einsum("bhkd,hrd->bhkr", key, position)
        return c2p, p2c

    def _split(self, projected: Tensor, scale: float) -> Tensor:
        return split_heads(projected if scale == 1 else projected * scale, self.num_heads)

    def _flex(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        relative: Tensor,
        distance: Tensor,
        mask: Tensor | None,
        real: Tensor | None,
    ) -> Tensor:
        c2p, p2c = self._by_row(query, key, relative, scale=self.scale)
        rows = pair_rows(distance, query.shape[-2])
        return join_heads(
            flex_attention(
                query, key, value, c2p=c2p, p2c=p2c, rows=rows, mask=mask, real=real, scale=self.scale
            )
        )

    def _at_distances(self, project: nn.Module, relative: Tensor, distance: Tensor) -> Tensor:
        """Return the scaled projection of each distance, [heads, distances, width]."""
        if len(distance) < len(relative):
            projected = project(F.embedding(distance, relative))
        else:
            projected = F.embedding(distance, project(relative))
        return self._split(projected, self.scale)


def align(scores: Tensor, *, skip: int = 0) -> Tensor:
    """Turn scores by distance into scores by key: […, n, 2n − 1 or more] to [..., n, n], as a view.

    After `skip` columns, row i of the input starts at distance 1 − n, so key k is at column k − i + n − 1.

    >>> align(torch.tensor([[-1, 0, 1, 9], [-1, 0, 1, 9]]))
    tensor([[ 0,  1],
            [-1,  0]])
    >>> align(torch.tensor([[9, -1, 0, 1], [9, -1, 0, 1]]), skip=1)
    tensor([[ 0,  1],
            [-1,  0]])
    """
    length, width = scores.shape[-2:]
    if length == 1:
        return scores.narrow(-1, skip, 1)
    flat = scores.flatten(-2).narrow(-1, length - 1, length * (width - 1))
    return flat.view(*flat.shape[:-1], length, width - 1).narrow(-1, skip, length)


def real_tokens(hidden: Tensor, *, attention_mask: Tensor | None, packed: Packed | None) -> Tensor | None:
    """Return 1 for real tokens and 0 for padding, [batch, 1, length, 1]."""
    if packed is not None and packed.rows is not None:
        attention_mask = packed.rows.real
    return (
        None
        if attention_mask is None
        else (attention_mask != 0)[:, None, :, None].to(attention_dtype(hidden))
    )


def pair_bias(hidden: Tensor, *, real: Tensor | None) -> Tensor | None:
    """Return what to add to scores, [batch, 1, length, length], to hide padding from real tokens.

    Padding attends to all tokens alike: its queries become zero. Hiding every token from it would do the
    same, but then fused kernels compute wrong gradients: they cannot normalize a row of lowest numbers.
    """
    if real is None:
        return None
    hides = (real != 0) & (real.mT == 0)
    return hiding_bias(hides, real.dtype)


def _rows(span: int, num_buckets: int, max_distance: int) -> Tensor:
    """Return the row of the embedding for each distance −reach … reach; beyond, the row stays the same."""
    reach = max(span, max_distance)
    while True:
        distance = torch.arange(-reach, reach + 1, device="cpu")
        if num_buckets > 0:
            distance = log_buckets(distance, num_buckets, max_distance)
        if int(distance[-1]) >= span:
            return (distance + span).clamp(0, 2 * span - 1)
        reach *= 2
