"""A model that remembers: state carried from call to call, cut and reset where it should be.

The model sees one number at a time and has to say the number that it saw two calls ago. It can only do so
with its carried state. It is trained in windows (truncated back-propagation through time): inside a window
gradients flow from call to call, `detach_state` cuts them between windows, and `reset_state` forgets
everything where a new sequence begins. In the end its memory is taken away, to see what it was worth.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from flodl import FlowBuilder, Graph, GraphError, manual_seed

HIDDEN, DELAY, WINDOW = 16, 2, 10


class Cell(nn.Module):
    """A GRU cell whose hidden state is a reference, so that the graph carries it."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRUCell(1, HIDDEN)

    def forward(self, x: Tensor, *, hidden: Tensor) -> Tensor:
        return self.gru(x, hidden)


def nothing_yet(x: Tensor) -> Tensor:
    return x.new_zeros(len(x), HIDDEN)


def build() -> Graph:
    # `using` before `tag`: the cell gets the value that "hidden" had in the previous call.
    return (
        FlowBuilder(Cell())
        .using("hidden", init=nothing_yet)
        .tag("hidden")
        .through(nn.Linear(HIDDEN, 1))
        .build()
    )


def sequences(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Give numbers, time first, and what they were DELAY calls ago."""
    numbers = torch.rand(length, batch, 1) * 2 - 1
    return numbers, numbers.roll(DELAY, dims=0)


def train(model: Graph, num_sequences: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for number in range(1, num_sequences + 1):
        numbers, targets = sequences(batch=32, length=5 * WINDOW)
        model.reset_state()  # a new sequence knows nothing of the last
        for window, (x, y) in enumerate(zip(numbers.split(WINDOW), targets.split(WINDOW))):
            answers = torch.stack([model(step) for step in x])
            skipped = DELAY if window == 0 else 0  # at the very start there is nothing to repeat
            loss = mse_loss(answers[skipped:], y[skipped:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.detach_state()  # keep the values, let go of their history
            model.record("loss", loss)
        model.end_epoch()
        if number % 10 == 0:
            print(f"sequence {number:3}  loss {model.trend('loss').latest:.4f}")


@torch.no_grad()
def error(model: Graph, *, forgetful: bool) -> float:
    numbers, targets = sequences(batch=200, length=20)
    model.reset_state()
    answers = []
    for step in numbers:
        if forgetful:
            model.reset_state()
        answers.append(model(step))
    return mse_loss(torch.stack(answers)[DELAY:], targets[DELAY:]).item()


def main() -> None:
    manual_seed(0)
    model = build()
    print(f"carries state: {model.has_state}; always answering 0 would have a loss of {1 / 3:.4f}\n")
    train(model, num_sequences=60)
    print(f"\nwith its memory:     {error(model, forgetful=False):.4f}")
    print(f"reset in every call: {error(model, forgetful=True):.4f}")

    model.reset_state()
    model(torch.zeros(4, 1))
    try:
        model(torch.zeros(5, 1))
    except GraphError as refused:
        print(f"\nanother batch size without a reset:\n  {type(refused).__name__}: {refused}")


if __name__ == "__main__":
    main()
