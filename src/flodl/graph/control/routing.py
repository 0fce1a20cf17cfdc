"""Routers, which return weights of experts, and selectors, which return the index of a branch."""

from __future__ import annotations

import operator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flodl.core import RouteError
from flodl.core.integers import as_integer, is_index, is_integer
from flodl.core.usage.calls import RouteCallError, explain_creation

from ..plan.shapes import differ


class _Projection(nn.Module):
    """Project the stream, plus any references, to one logit per choice.

    Features are along `dim`. If that is not the last dimension (1 for images), the stream is first
    averaged over all other dimensions except the batch.
    """

    def __init__(self, in_features: int, num_choices: int, *, dim: int = -1) -> None:
        super().__init__()
        if not is_index(num_choices, at_least=2):
            raise RouteError(f"{type(self).__name__} got {num_choices!r:.60} choices. Pass at least 2.")
        if not is_index(in_features, at_least=1):
            raise RouteError(
                f"{type(self).__name__} got in_features={in_features!r:.60}. Pass the width of the stream."
            )
        self.num_choices = num_choices
        if not is_integer(dim := as_integer(dim), at_least=-(2**31)):
            raise RouteError(
                f"{type(self).__name__} got dim={dim!r}. Pass the dimension of the features, an integer; "
                "-1 is the last."
            )
        self.dim = dim
        self.linear = nn.Linear(in_features, num_choices)

    def logits(self, x: Tensor, refs: dict[str, Any]) -> Tensor:
        """Return the logits; the last dimension is the choice."""
        for name, ref in refs.items():
            if ref is not None:
                if isinstance(ref, Tensor) and differ(ref.shape, x.shape):
                    raise RouteError(
                        f"the reference {name!r} has shape {tuple(ref.shape)}, the stream {tuple(x.shape)}. "
                        f"{type(self).__name__} adds them, so they need the same shape."
                    )
                x = x + ref
        if self.dim != -1:
            if not -x.dim() <= self.dim < x.dim():
                raise RouteError(
                    f"{type(self).__name__} got dim={self.dim} for a stream of shape {tuple(x.shape)}, "
                    f"which has {x.dim()} dimensions."
                )
            features = self.dim % x.dim()
            others = [dim for dim in range(1, x.dim()) if dim != features]
            x = x.mean(others) if others else x
        logits: Tensor = self.linear(x)
        return logits

    def extra_repr(self) -> str:
        return "" if self.dim == -1 else f"dim={self.dim}"


@explain_creation(RouteCallError, example="Write SoftmaxRouter(64, 4).")
class SoftmaxRouter(_Projection):
    """Weight experts with a softmax over learned logits; references are added to the stream first.

    >>> import torch
    >>> weights = SoftmaxRouter(16, 2)(torch.zeros(4, 16))
    >>> tuple(weights.shape), bool(torch.allclose(weights.sum(-1), torch.ones(4)))
    ((4, 2), True)
    """

    def forward(self, x: Tensor, /, **refs: Tensor | None) -> Tensor:
        return self.logits(x, refs).softmax(dim=-1)


@explain_creation(RouteCallError, example="Write SigmoidRouter(64, 4).")
class SigmoidRouter(_Projection):
    """Weight each expert independently between 0 and 1; the weights need not sum to one."""

    def forward(self, x: Tensor, /, **refs: Tensor | None) -> Tensor:
        return self.logits(x, refs).sigmoid()


@explain_creation(RouteCallError, example="Write TopKRouter(64, 4, k=2).")
class TopKRouter(_Projection):
    """Weight the `k` best experts with a softmax among them, and all others with zero.

    With `k=1`, the weight is the probability of the best expert among all of them: a softmax over one expert
    is always 1, and the router would have no gradient.

    >>> import torch
    >>> weights = TopKRouter(8, 4, k=2)(torch.randn(3, 8))
    >>> (weights > 0).sum(-1).tolist()
    [2, 2, 2]
    """

    def __init__(self, in_features: int, num_choices: int, k: int = 2, *, dim: int = -1) -> None:
        super().__init__(in_features, num_choices, dim=dim)
        if not is_index(k, at_least=1) or k > num_choices:
            raise RouteError(
                f"TopKRouter got k={k!r:.60} for {num_choices} choices. Use k from 1 to {num_choices}."
            )
        self.k = k

    def forward(self, x: Tensor, /, **refs: Tensor | None) -> Tensor:
        logits = self.logits(x, refs)
        best, index = logits.topk(self.k, dim=-1)
        chosen = logits.softmax(dim=-1).gather(-1, index) if self.k == 1 else best.softmax(dim=-1)
        return torch.zeros_like(logits, dtype=chosen.dtype).scatter(-1, index, chosen)

    def extra_repr(self) -> str:
        return f"k={self.k}"


@explain_creation(RouteCallError, example="Write FixedSelector(0).")
class FixedSelector(nn.Module):
    """Always choose the same branch; the index is a plain integer, so there is no host sync."""

    def __init__(self, index: int) -> None:
        super().__init__()
        if not is_index(index, at_least=0):
            raise RouteError(
                f"FixedSelector got index {index!r:.60}. Pass an integer; branches are numbered from 0."
            )
        self.index = operator.index(index)

    def forward(self, x: Any) -> int:
        return self.index

    def extra_repr(self) -> str:
        return str(self.index)


@explain_creation(RouteCallError, example="Write ArgmaxSelector(64, 4).")
class ArgmaxSelector(_Projection):
    """Choose the branch with the largest logit for each sample.

    An index passes no gradient. With `gradient="straight_through"` or `"gumbel"` the choice is
    still hard but the selector learns; every branch then runs on the whole batch.

    >>> import torch
    >>> ArgmaxSelector(16, 3)(torch.randn(5, 16)).shape
    torch.Size([5])
    """

    def __init__(
        self,
        in_features: int,
        num_choices: int,
        *,
        gradient: Literal["straight_through", "gumbel"] | None = None,
        dim: int = -1,
    ) -> None:
        super().__init__(in_features, num_choices, dim=dim)
        if gradient not in (None, "straight_through", "gumbel"):
            raise RouteError(
                f"ArgmaxSelector got gradient={gradient!r}. Use None, 'straight_through' or 'gumbel'."
            )
        self.gradient = gradient

    @property
    def gives_weights(self) -> bool:
        """Whether the output is one weight per branch instead of an index."""
        return self.gradient is not None

    def forward(self, x: Tensor, /, **refs: Tensor | None) -> Tensor:
        logits = self.logits(x, refs)
        if self.gradient is None:
            return logits.argmax(dim=-1)
        if self.gradient == "gumbel" and self.training:
            return F.gumbel_softmax(logits, hard=True)
        soft = logits.softmax(dim=-1)
        hard = F.one_hot(logits.argmax(dim=-1), self.num_choices).to(soft.dtype)
        return hard + soft - soft.detach()

    def extra_repr(self) -> str:
        return "" if self.gradient is None else f"gradient={self.gradient!r}"
