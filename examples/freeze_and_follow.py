"""Train a model of two parts, and let its metrics decide what happens next.

An encoder (convolutions) and a classifier (a linear layer) learn generated digits. When the loss has nearly
stalled, the encoder is frozen by its path and only the classifier is trained, with a smaller learning rate.
When the loss stalls again, training ends. Prints a line per epoch and the tree before and after, and writes
the epochs to freeze_and_follow.csv in the current folder.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flodl import FlowBuilder, Graph, manual_seed
from flodl.core.formats import format_duration
from flodl.data import digits

MAX_EPOCHS = 30


def build() -> Graph:
    encoder = (
        FlowBuilder(nn.Conv2d(1, 8, 3, stride=2)).through(nn.BatchNorm2d(8)).through(nn.ReLU())
        .through(nn.Conv2d(8, 16, 3, stride=2)).through(nn.BatchNorm2d(16)).through(nn.ReLU()).tag("features")
        .through(nn.Flatten())
        .label("encoder")
        .build()
    )  # fmt: skip
    return FlowBuilder(encoder).through(nn.Linear(16 * 3 * 3, 10)).tag("classifier").label("digits").build()


@torch.no_grad()
def accuracy(model: Graph, images: Tensor, labels: Tensor) -> Tensor:
    model.eval()
    return (model(images).argmax(dim=1) == labels).float().mean()


def train_epoch(model: Graph, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
    model.train()
    if model.is_frozen("encoder"):
        model.set_training("encoder", False)  # train() switched its batch norm to training mode
    for batch in torch.randperm(len(images)).split(100):
        loss = cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.record("loss", loss, weight=len(batch))
        model.collect("encoder.features", reduce="mean")
        model.end_step()


def main() -> None:
    manual_seed(0)
    images, labels = digits(2400, seed=0, size=16)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    print(model.tree_summary())
    for epoch in range(1, MAX_EPOCHS + 1):
        train_epoch(model, optimizer, images[400:], labels[400:])
        model.record("accuracy", accuracy(model, images[:400], labels[:400]))
        model.end_epoch()
        metrics = "  ".join(f"{name} {value:.3f}" for name, value in model.latest_metrics().items())
        print(f"epoch {epoch:2}  {metrics}  (at most {format_duration(model.eta(MAX_EPOCHS))} left)")

        loss = model.trend("loss")
        if not model.is_frozen("encoder") and loss.stalled(3, tol=0.03):
            model.freeze("encoder", eval_mode=True)
            optimizer = torch.optim.Adam(model.parameters_at("classifier"), lr=0.001)
            print(f"          the loss changes by {loss.slope(3):.3f} per epoch: freezing the encoder")
        elif model.is_frozen("encoder") and loss.stalled(3, tol=0.003):
            print(f"          the loss changes by {loss.slope(3):.3f} per epoch: stopping")
            break
    print(model.tree_summary())
    best = model.trend("accuracy").max
    print(f"best accuracy {best:.3f}; all epochs are in {model.export_trends('freeze_and_follow.csv').name}")


if __name__ == "__main__":
    main()
