"""Teach a model to read digits, then let another one start from its eyes.

A first model learns the digits that flodl draws. A second one must tell odd from even with very few examples:
once from scratch, and once with the eye of the first, taken out of its file by prefix, frozen while the new
reader learns, then thawed with a smaller learning rate. Prints the accuracy of both.
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flodl import FlowBuilder, Graph, manual_seed
from flodl.checkpoint import checkpoint_keys
from flodl.data import digits


def build(classes: int) -> Graph:
    eye = (
        FlowBuilder(nn.Conv2d(1, 8, 3, stride=2)).through(nn.BatchNorm2d(8)).through(nn.ReLU())
        .through(nn.Conv2d(8, 16, 3, stride=2)).through(nn.BatchNorm2d(16)).through(nn.ReLU())
        .through(nn.Flatten())
        .label("eye")
        .build()
    )  # fmt: skip
    return FlowBuilder(eye).through(nn.Linear(16 * 3 * 3, classes)).tag("reader").build()


def train(model: Graph, groups: list[dict], images: Tensor, labels: Tensor, *, epochs: int) -> None:
    optimizer = torch.optim.Adam(groups)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(50):
            loss = cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model: Graph, images: Tensor, labels: Tensor) -> float:
    model.eval()
    return (model(images).argmax(dim=1) == labels).float().mean().item()


def main() -> None:
    manual_seed(0)
    images, labels = digits(2400, seed=0, size=16)
    held_images, held_labels = images[:800], labels[:800]
    few_images, few_odd = images[800:900], labels[800:900] % 2

    teacher = build(10)
    train(teacher, [{"params": teacher.parameters(), "lr": 0.01}], images[900:], labels[900:], epochs=6)
    print(f"the teacher reads ten digits: {accuracy(teacher, held_images, held_labels):.3f}")

    scratch = build(2)
    train(scratch, [{"params": scratch.parameters(), "lr": 0.01}], few_images, few_odd, epochs=40)

    pupil = build(2)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "teacher.fdl"
        teacher.save_checkpoint(file)
        print(f"the file has {len(checkpoint_keys(file))} tensors; the eye takes its own:", end=" ")
        print(pupil.subgraph("eye").load_checkpoint(file, prefix="eye"))
    pupil.freeze("eye", eval_mode=True)
    reader = {"params": pupil.parameters_at("reader"), "lr": 0.01}
    train(pupil, [reader], few_images, few_odd, epochs=20)
    print(f"with a frozen eye: {accuracy(pupil, held_images, held_labels % 2):.3f}")
    pupil.thaw("eye")
    train(
        pupil, [reader, {"params": pupil.parameters_at("eye"), "lr": 0.001}], few_images, few_odd, epochs=20
    )

    print(
        f"odd or even from 100 examples, from scratch: {accuracy(scratch, held_images, held_labels % 2):.3f}"
    )
    print(f"odd or even from 100 examples, transferred:  {accuracy(pupil, held_images, held_labels % 2):.3f}")


if __name__ == "__main__":
    main()
