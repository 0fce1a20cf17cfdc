"""Shapes, loss and learning rate of each reference model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flodl import Graph

from . import by_hand, graphs

Loss = Callable[[Tensor, Tensor], Tensor]
Batches = list[tuple[Tensor, Tensor]]


def over_tokens(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy over every position."""
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


@dataclass(frozen=True)
class Reference:
    """One model of the suite: how to build it in each way, and the work of a step.

    `y` is the target's shape, None where the input is its own target. `matched` is the same model
    without what only the reference's form of it pays for. `graph_on_cpu` is the form of the graph for where
    the host reads a value for nothing. `autotune` lets cuDNN try its algorithms.
    """

    by_hand: Callable[[], nn.Module]
    graph: Callable[[], Graph]
    x: tuple[int, ...]
    y: tuple[int, ...] | None
    num_parameters: int | None = None
    matched: Callable[[], nn.Module] | None = None
    in_jax: Callable[[], Any] | None = None
    loss: Loss = F.mse_loss
    lr: float = 1e-3
    vocabulary: int | None = None
    autotune: bool = True
    graph_on_cpu: Callable[[], Graph] | None = None

    def batches(self, count: int, device: str) -> Batches:
        """Return `count` random batches, the same for every caller."""
        source = torch.Generator(device).manual_seed(1)
        made = []
        for _ in range(count):
            x = self._draw(self.x, source)
            made.append((x, x if self.y is None else self._draw(self.y, source)))
        return made

    def _draw(self, shape: tuple[int, ...], source: torch.Generator) -> Tensor:
        if self.vocabulary is not None:
            return torch.randint(self.vocabulary, shape, generator=source, device=source.device)
        return torch.randn(shape, generator=source, device=source.device)

    def module(self, device: str, *, matched: bool = True) -> nn.Module:
        """Build the torch model, with the same weights for every caller."""
        torch.manual_seed(0)
        return (self.matched if matched and self.matched else self.by_hand)().to(device)

    def flow(self, device: str) -> Graph:
        """Build the flodl graph with the weights of `module`."""
        build = self.graph_on_cpu if device == "cpu" and self.graph_on_cpu else self.graph
        graph = build().to(device)
        same_weights(graph, self.module(device))
        return graph


def same_weights(graph: nn.Module, module: nn.Module) -> None:
    """Copy the weights of one model to the other; their parameters have the same order."""
    with torch.no_grad():
        for ours, theirs in zip(graph.parameters(), module.parameters(), strict=True):
            ours.copy_(theirs)


def _jax(name: str, *details: int) -> Callable[[], Any]:
    """Return a forward from the JAX file, which is imported on first use."""

    def find() -> Any:
        found = getattr(import_module("models.in_jax"), name)
        return found(*details) if details else found

    return find


def _wide(
    build: Callable[..., nn.Module], graph: Callable[..., Graph], *, batch: int, width: int, **others: Any
) -> Reference:
    """Return a reference with inputs and targets [batch, width], whose builders take the width first."""
    shape = (batch, width)
    return Reference(partial(build, width), partial(graph, width), shape, shape, **others)


def _transformer(batch: int, length: int, *details: int, num_parameters: int | None = None) -> Reference:
    vocabulary, _, _, heads, depth = details
    return Reference(
        partial(by_hand.transformer, *details, length, need_weights=True),
        partial(graphs.transformer, *details, length),
        (batch, length),
        (batch, length),
        num_parameters,
        partial(by_hand.transformer, *details, length, need_weights=False),
        _jax("transformer", heads, depth),
        over_tokens,
        1e-4,
        vocabulary,
    )


_SECOND: dict[str, tuple[Callable[..., nn.Module], Callable[..., Graph], Callable[[], Any]]] = {
    "residual_tower": (by_hand.ResidualTower, graphs.residual_tower, _jax("residual_tower")),
    "gated_routing": (by_hand.GatedRouting, graphs.gated_routing, _jax("gated_routing")),
    "iterative_refine": (
        partial(by_hand.IterativeRefine, turns=8),
        partial(graphs.iterative_refine, turns=8),
        _jax("iterative_refine", 8),
    ),
    "feedback_fixed": (
        partial(by_hand.IterativeRefine, turns=10),
        partial(graphs.iterative_refine, turns=10),
        _jax("iterative_refine", 10),
    ),
}


def second_tier(name: str, batch: int, width: int, num_parameters: int | None = None) -> Reference:
    """Return a model of the second tier, at any width."""
    build, graph, forward = _SECOND[name]
    return _wide(build, graph, batch=batch, width=width, num_parameters=num_parameters, in_jax=forward)


TIER_2: dict[str, Reference] = {
    "residual_tower": second_tier("residual_tower", 256, 1024, 14_718_976),
    "gated_routing": second_tier("gated_routing", 256, 512, 2_638_856),
    "iterative_refine": second_tier("iterative_refine", 256, 1024, 3_152_896),
    "feedback_fixed": second_tier("feedback_fixed", 128, 512, 790_016),
}

SUITE: dict[str, Reference] = {
    "transformer": _transformer(32, 128, 8192, 512, 2048, 8, 4, num_parameters=21_071_872),
    "mlp": _wide(
        by_hand.mlp, graphs.mlp, batch=256, width=1024, num_parameters=16_802_816, in_jax=_jax("mlp")
    ),
    **TIER_2,
    "lstm_seq": Reference(
        by_hand.lstm_seq, graphs.lstm_seq, (128, 50, 256), (128, 256), 3_809_536, autotune=False
    ),
    "conv_autoenc": Reference(by_hand.conv_autoenc, graphs.conv_autoenc, (64, 3, 64, 64), None, 5_515_395),
    "convnet": Reference(by_hand.convnet, graphs.convnet, (128, 3, 64, 64), (128, 100), 3_965_028),
    "gru_seq": Reference(
        by_hand.gru_seq, graphs.gru_seq, (128, 50, 256), (128, 256), 1_314_048, autotune=False
    ),
    "feedback_loop": _wide(
        by_hand.FeedbackLoop,
        graphs.feedback_loop,
        batch=128,
        width=512,
        num_parameters=790_529,
        graph_on_cpu=partial(graphs.feedback_loop, masked=False),
    ),
}


def small_suite() -> dict[str, Reference]:
    """Return the whole suite at sizes that take seconds on a CPU."""
    channels, sequence = (8, 8, 8, 8), ((4, 6, 16), (4, 16))
    return {
        "transformer": _transformer(4, 8, 64, 16, 32, 2, 2),
        "mlp": _wide(
            partial(by_hand.mlp, hidden=32),
            partial(graphs.mlp, hidden=32),
            batch=4,
            width=16,
            in_jax=_jax("mlp"),
        ),
        **{name: second_tier(name, 4, 16) for name in TIER_2},
        "lstm_seq": Reference(
            partial(by_hand.lstm_seq, 16, 16), partial(graphs.lstm_seq, 16, 16), *sequence, autotune=False
        ),
        "conv_autoenc": Reference(
            partial(by_hand.conv_autoenc, channels),
            partial(graphs.conv_autoenc, channels),
            (4, 3, 16, 16),
            None,
        ),
        "convnet": Reference(
            partial(by_hand.convnet, channels, 5),
            partial(graphs.convnet, channels, 5),
            (4, 3, 16, 16),
            (4, 5),
        ),
        "gru_seq": Reference(
            partial(by_hand.gru_seq, 16, 16), partial(graphs.gru_seq, 16, 16), *sequence, autotune=False
        ),
        "feedback_loop": _wide(by_hand.FeedbackLoop, graphs.feedback_loop, batch=4, width=16),
    }
