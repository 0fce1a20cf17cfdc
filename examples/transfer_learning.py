"""Train a model on digits, then reuse its encoder in another model.

The first model learns generated digits. The second one must distinguish odd from even digits with few
examples: once from scratch, and once with the encoder of the first model, loaded from its file by prefix,
frozen while the new classifier is trained, then thawed with a smaller learning rate. Prints the accuracy of
both.
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
    encoder = (
        FlowBuilder(nn.Conv2d(1, 8, 3, stride=2)).through(nn.BatchNorm2d(8)).through(nn.ReLU())
        .through(nn.Conv2d(8, 16, 3, stride=2)).through(nn.BatchNorm2d(16)).through(nn.ReLU())
        .through(nn.Flatten())
        .label("encoder")
        .build()
    )  # fmt: skip
    return FlowBuilder(encoder).through(nn.Linear(16 * 3 * 3, classes)).tag("classifier").build()


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
    test_images, test_labels = images[:800], labels[:800]
    few_images, few_odd = images[800:900], labels[800:900] % 2

    teacher = build(10)
    train(teacher, [{"params": teacher.parameters(), "lr": 0.01}], images[900:], labels[900:], epochs=6)
    print(f"the teacher classifies ten digits: {accuracy(teacher, test_images, test_labels):.3f}")

    scratch = build(2)
    train(scratch, [{"params": scratch.parameters(), "lr": 0.01}], few_images, few_odd, epochs=40)

    student = build(2)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "teacher.fdl"
        teacher.save_checkpoint(file)
        print(f"the file has {len(checkpoint_keys(file))} tensors; the encoder loads its own:", end=" ")
        print(student.subgraph("encoder").load_checkpoint(file, prefix="encoder"))
    student.freeze("encoder", eval_mode=True)
    classifier = {"params": student.parameters_at("classifier"), "lr": 0.01}
    train(student, [classifier], few_images, few_odd, epochs=20)
    print(f"with a frozen encoder: {accuracy(student, test_images, test_labels % 2):.3f}")
    student.thaw("encoder")
    train(
        student,
        [classifier, {"params": student.parameters_at("encoder"), "lr": 0.001}],
        few_images,
        few_odd,
        epochs=20,
    )

    print(
        f"odd or even from 100 examples, from scratch: {accuracy(scratch, test_images, test_labels % 2):.3f}"
    )
    print(
        f"odd or even from 100 examples, transferred:  {accuracy(student, test_images, test_labels % 2):.3f}"
    )


if __name__ == "__main__":
    main()
