"""A model with state that is carried from call to call, detached and reset.

The model sees one number at a time and has to return the number that it saw two calls ago, which requires
carried state. It is trained in windows (truncated backpropagation through time): inside a window,
gradients flow from call to call; `detach_state` stops them between windows; `reset_state` clears the state
before a new sequence. At the end the model is evaluated with and without its state.
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


def zero_state(x: Tensor) -> Tensor:
    return x.new_zeros(len(x), HIDDEN)


def build() -> Graph:
    # `using` before `tag`: the cell gets the value that "hidden" had in the previous call.
    return (
        FlowBuilder(Cell())
        .using("hidden", init=zero_state)
        .tag("hidden")
        .through(nn.Linear(HIDDEN, 1))
        .build()
    )


def sequences(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Return random numbers, time first, and the same numbers delayed by DELAY calls."""
    numbers = torch.rand(length, batch, 1) * 2 - 1
    return numbers, numbers.roll(DELAY, dims=0)


def train(model: Graph, num_sequences: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for number in range(1, num_sequences + 1):
        numbers, targets = sequences(batch=32, length=5 * WINDOW)
        model.reset_state()  # sequences are independent
        for window, (x, y) in enumerate(zip(numbers.split(WINDOW), targets.split(WINDOW))):
            outputs = torch.stack([model(step) for step in x])
            skipped = DELAY if window == 0 else 0  # the first calls have nothing to repeat
            loss = mse_loss(outputs[skipped:], y[skipped:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.detach_state()  # keep the values, drop their autograd history
            model.record("loss", loss)
        model.end_epoch()
        if number % 10 == 0:
            print(f"sequence {number:3}  loss {model.trend('loss').latest:.4f}")


@torch.no_grad()
def error(model: Graph, *, reset_every_call: bool) -> float:
    numbers, targets = sequences(batch=200, length=20)
    model.reset_state()
    outputs = []
    for step in numbers:
        if reset_every_call:
            model.reset_state()
        outputs.append(model(step))
    return mse_loss(torch.stack(outputs)[DELAY:], targets[DELAY:]).item()


def main() -> None:
    manual_seed(0)
    model = build()
    print(f"carries state: {model.has_state}; always answering 0 has a loss of {1 / 3:.4f}\n")
    train(model, num_sequences=60)
    print(f"\nwith carried state:  {error(model, reset_every_call=False):.4f}")
    print(f"reset in every call: {error(model, reset_every_call=True):.4f}")

    model.reset_state()
    model(torch.zeros(4, 1))
    try:
        model(torch.zeros(5, 1))
    except GraphError as caught:
        print(f"\na different batch size without a reset:\n  {type(caught).__name__}: {caught}")


if __name__ == "__main__":
    main()
