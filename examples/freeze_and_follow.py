"""Train a model of two parts, and let its own metrics decide what happens next.

An eye (convolutions) and a reader (a linear layer) learn digits that flodl draws. When the loss has nearly
stalled, the eye is frozen by its path and the reader goes on alone, with a smaller learning rate; when the
loss stalls again, training ends. Prints a line per epoch and the tree before and after, and writes the epochs
to freeze_and_follow.csv in this folder.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flodl import FlowBuilder, Graph, manual_seed
from flodl.core.formats import format_duration
from flodl.data import digits

MOST_EPOCHS = 30


def build() -> Graph:
    eye = (
        FlowBuilder(nn.Conv2d(1, 8, 3, stride=2)).through(nn.BatchNorm2d(8)).through(nn.ReLU())
        .through(nn.Conv2d(8, 16, 3, stride=2)).through(nn.BatchNorm2d(16)).through(nn.ReLU()).tag("features")
        .through(nn.Flatten())
        .label("eye")
        .build()
    )  # fmt: skip
    return FlowBuilder(eye).through(nn.Linear(16 * 3 * 3, 10)).tag("reader").label("digits").build()


@torch.no_grad()
def accuracy(model: Graph, images: Tensor, labels: Tensor) -> Tensor:
    model.eval()
    return (model(images).argmax(dim=1) == labels).float().mean()


def train_epoch(model: Graph, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
    model.train()
    if model.is_frozen("eye"):
        model.set_training("eye", False)  # train() woke its batch norm
    for batch in torch.randperm(len(images)).split(100):
        loss = cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.record("loss", loss, weight=len(batch))
        model.collect("eye.features", reduce="mean")
        model.end_step()


def main() -> None:
    manual_seed(0)
    images, labels = digits(2400, seed=0, size=16)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    print(model.tree_summary())
    for epoch in range(1, MOST_EPOCHS + 1):
        train_epoch(model, optimizer, images[400:], labels[400:])
        model.record("accuracy", accuracy(model, images[:400], labels[:400]))
        model.end_epoch()
        metrics = "  ".join(f"{name} {value:.3f}" for name, value in model.latest_metrics().items())
        print(f"epoch {epoch:2}  {metrics}  (at most {format_duration(model.eta(MOST_EPOCHS))} left)")

        loss = model.trend("loss")
        if not model.is_frozen("eye") and loss.stalled(3, tol=0.03):
            model.freeze("eye", eval_mode=True)
            optimizer = torch.optim.Adam(model.parameters_at("reader"), lr=0.001)
            print(f"          the loss changes by {loss.slope(3):.3f} per epoch: the eye is frozen")
        elif model.is_frozen("eye") and loss.stalled(3, tol=0.003):
            print(f"          the loss changes by {loss.slope(3):.3f} per epoch: done")
            break
    print(model.tree_summary())
    best = model.trend("accuracy").max
    print(f"best accuracy {best:.3f}; every epoch is in {model.export_trends('freeze_and_follow.csv').name}")


if __name__ == "__main__":
    main()
