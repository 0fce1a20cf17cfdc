"""The reference models in plain torch."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def mlp(width: int = 1024, hidden: int = 2048) -> nn.Sequential:
    """Five linear layers; GELU and layer norm after the first four."""
    layers: list[nn.Module] = []
    for before in (width, hidden, hidden, hidden):
        layers += [nn.Linear(before, hidden), nn.GELU(), nn.LayerNorm(hidden)]
    return nn.Sequential(*layers, nn.Linear(hidden, width))


def convnet(channels: tuple[int, ...] = (64, 128, 256, 512, 512), num_outputs: int = 100) -> nn.Sequential:
    """Convolutions with batch norm, pooling after all but the last, one linear head."""
    layers: list[nn.Module] = []
    for position, (before, after) in enumerate(zip((3, *channels), channels)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        if position < len(channels) - 1:
            layers.append(nn.MaxPool2d(2))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], num_outputs))
    return nn.Sequential(*layers, *head)


def conv_autoenc(channels: tuple[int, ...] = (64, 128, 256, 512)) -> nn.Sequential:
    """Strided convolutions down, transposed ones up, a tanh at the end."""
    layers: list[nn.Module] = []
    for before, after in zip((3, *channels), channels):
        layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    up = channels[::-1]
    for before, after in pairwise(up):
        layers += [
            nn.ConvTranspose2d(before, after, 4, stride=2, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.ConvTranspose2d(up[-1], 3, 4, stride=2, padding=1), nn.Tanh())


class UnrolledGru(nn.Module):
    """One GRU cell stepped over the sequence in Python; returns the last hidden state."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.new_zeros(x.shape[0], self.cell.hidden_size)
        for time in range(x.shape[1]):
            hidden = self.cell(x[:, time, :], hidden)
        return hidden


class LastOfLstm(nn.Module):
    """Two LSTM layers; returns the output of the last time step."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]


def gru_seq(width: int = 256, hidden: int = 512) -> nn.Sequential:
    return nn.Sequential(UnrolledGru(width, hidden), nn.Linear(hidden, width))


def lstm_seq(width: int = 256, hidden: int = 512) -> nn.Sequential:
    return nn.Sequential(LastOfLstm(width, hidden), nn.Linear(hidden, width))


class Positions(nn.Module):
    """Add a learned vector per position."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, length, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.positions


class Attention(nn.Module):
    """Self-attention; `need_weights` disables torch's fused kernel and averages the weights."""

    def __init__(self, width: int, heads: int, *, need_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=self.need_weights)[0]


def feed_forward(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each added to the stream and then normalized."""

    def __init__(self, width: int, hidden: int, heads: int, *, need_weights: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, need_weights=need_weights)
        self.after_attention = nn.LayerNorm(width)
        self.feed_forward = feed_forward(width, hidden)
        self.after_feed_forward = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.after_attention(x + self.attention(x))
        return self.after_feed_forward(x + self.feed_forward(x))


def transformer(
    vocabulary: int = 8192,
    width: int = 512,
    hidden: int = 2048,
    heads: int = 8,
    depth: int = 4,
    length: int = 128,
    *,
    need_weights: bool = True,
) -> nn.Sequential:
    layers = [EncoderLayer(width, hidden, heads, need_weights=need_weights) for _ in range(depth)]
    entry = (nn.Embedding(vocabulary, width), Positions(length, width))
    return nn.Sequential(*entry, *layers, nn.Linear(width, vocabulary))


class Block(nn.Module):
    """Linear, GELU, layer norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.act, self.norm = nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.act(self.linear(x)))


class ResidualTower(nn.Module):
    def __init__(self, width: int = 1024, depth: int = 12) -> None:
        super().__init__()
        self.entry = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.exit = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        for block in self.blocks:
            x = x + block(x)
        return self.exit(x)


class GatedRouting(nn.Module):
    def __init__(self, width: int = 512, num_experts: int = 8) -> None:
        super().__init__()
        self.entry, self.act = nn.Linear(width, width), nn.GELU()
        self.router = nn.Linear(width, num_experts)
        self.experts = nn.ModuleList(Block(width) for _ in range(num_experts))
        self.exit = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.entry(x))
        weights = self.router(x).softmax(-1)
        stacked = torch.stack([expert(x) for expert in self.experts], dim=1)
        return self.exit((stacked * weights.unsqueeze(-1)).sum(1))


class IterativeRefine(nn.Module):
    def __init__(self, width: int = 1024, turns: int = 8) -> None:
        super().__init__()
        self.entry, self.act, self.norm = nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)
        self.block, self.turns = Block(width), turns
        self.exit = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.act(self.entry(x)))
        for _ in range(self.turns):
            x = x + self.block(x)
        return self.exit(x)


class MeanHalt(nn.Module):
    """Project to one number per sample and take the mean over the batch; above zero means stop."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).mean()


class FeedbackLoop(nn.Module):
    """Refine until the halt fires, which the host must read from the device after every iteration."""

    def __init__(self, width: int = 512, turns: int = 10) -> None:
        super().__init__()
        self.entry, self.act, self.norm = nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)
        self.block, self.halt, self.turns = Block(width), MeanHalt(width), turns
        self.exit = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.act(self.entry(x)))
        for _ in range(self.turns):
            x = x + self.block(x)
            if self.halt(x) > 0:
                break
        return self.exit(x)
