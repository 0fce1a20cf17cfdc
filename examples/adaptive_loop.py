"""A loop that learns when to stop.

A token stands on a ring of eight places and carries a counter. Every turn of the loop moves the token one
place on and takes one from the counter. The answer is where the token stands when the counter has run out, so
each sample needs another number of turns. Nobody says when to stop: a `LearnedHalt` sees the state after each
turn, the loop returns the expected position, and the loss of that position teaches the halt. The tables show
how likely the loop is to stop after each turn, before and after training.
"""

import torch
from torch import Tensor
from torch.nn.functional import nll_loss, one_hot

from flodl import FlowBuilder, Graph, LearnedHalt, manual_seed

PLACES, MOST_TURNS = 8, 5


def move(state: Tensor) -> Tensor:
    """One turn: the token a place further, the counter one lower."""
    token, counter = state.split([PLACES, MOST_TURNS + 1], dim=1)
    return torch.cat([token.roll(1, dims=1), counter.roll(-1, dims=1)], dim=1)


def build() -> Graph:
    return (
        FlowBuilder()
        .loop_body(move).until_cond(LearnedHalt(PLACES + MOST_TURNS + 1), max_iter=MOST_TURNS).tag("walk")
        .through(lambda state: state[:, :PLACES])
        .build()
    )  # fmt: skip


def tokens(places: Tensor, turns: Tensor) -> Tensor:
    return torch.cat([one_hot(places, PLACES), one_hot(turns, MOST_TURNS + 1)], dim=1).float()


def show(model: Graph, title: str) -> None:
    turns = torch.arange(1, MOST_TURNS + 1)
    with torch.no_grad():
        model(tokens(torch.zeros_like(turns), turns))
    halting = torch.stack(model.traces("walk.halt"), dim=1)
    print(f"\n{title}\nturns needed   chance to stop after turn 1 … {MOST_TURNS}")
    for needed, row in zip(turns.tolist(), halting.tolist()):
        print(f"{needed:>12}   " + "  ".join(f"{chance:.2f}" for chance in row))


def main() -> None:
    manual_seed(0)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    show(model, "Before training")
    for _ in range(10):
        for _ in range(20):
            places = torch.randint(PLACES, (64,))
            turns = torch.randint(1, MOST_TURNS + 1, (64,))
            position = model(tokens(places, turns))
            loss = nll_loss((position + 1e-6).log(), (places + turns) % PLACES)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.record("loss", loss)
            model.end_step()
        model.end_epoch()
    history = "  ".join(f"{value:.3f}" for value in model.trend("loss").values)
    print(f"\nloss by epoch: {history}")
    show(model, "After training")


if __name__ == "__main__":
    main()
