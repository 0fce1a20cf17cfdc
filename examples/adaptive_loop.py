"""A loop that learns when to stop.

A token is at one of eight positions on a ring and has a counter. Every iteration of the loop moves the
token by one position and decrements the counter. The answer is the position at which the counter reaches
zero, so the samples need different numbers of iterations. Nothing in the data says when to stop: a
`LearnedHalt` sees the state after each iteration, the loop returns the expected position, and the loss of
that position trains the halt. The tables show the probability of stopping after each iteration, before and
after training.
"""

import torch
from torch import Tensor
from torch.nn.functional import nll_loss, one_hot

from flodl import FlowBuilder, Graph, LearnedHalt, manual_seed

POSITIONS, MAX_ITERATIONS = 8, 5
WIDTH = POSITIONS + MAX_ITERATIONS + 1


def move(state: Tensor) -> Tensor:
    """Move the token by one position and decrement the counter."""
    token, counter = state.split([POSITIONS, MAX_ITERATIONS + 1], dim=1)
    return torch.cat([token.roll(1, dims=1), counter.roll(-1, dims=1)], dim=1)


def build() -> Graph:
    return (
        FlowBuilder()
        .loop_body(move).until_cond(LearnedHalt(WIDTH), max_iter=MAX_ITERATIONS).tag("walk")
        .through(lambda state: state[:, :POSITIONS])
        .build()
    )  # fmt: skip


def tokens(starts: Tensor, iterations: Tensor) -> Tensor:
    return torch.cat([one_hot(starts, POSITIONS), one_hot(iterations, MAX_ITERATIONS + 1)], dim=1).float()


def show(model: Graph, title: str) -> None:
    iterations = torch.arange(1, MAX_ITERATIONS + 1)
    with torch.no_grad():
        model(tokens(torch.zeros_like(iterations), iterations))
    halting = torch.stack(model.traces("walk.halt"), dim=1)
    print(f"\n{title}\niterations needed   probability of stopping after iteration 1 … {MAX_ITERATIONS}")
    for needed, row in zip(iterations.tolist(), halting.tolist()):
        print(f"{needed:>17}   " + "  ".join(f"{probability:.2f}" for probability in row))


def main() -> None:
    manual_seed(0)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    show(model, "Before training")
    for _ in range(10):
        for _ in range(20):
            starts = torch.randint(POSITIONS, (64,))
            iterations = torch.randint(1, MAX_ITERATIONS + 1, (64,))
            predicted = model(tokens(starts, iterations))
            loss = nll_loss((predicted + 1e-6).log(), (starts + iterations) % POSITIONS)
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
