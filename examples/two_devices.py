"""Train on two devices with one more argument.

The same model is trained on one device and on two, here two processes on the CPU; with GPUs, write
devices=["cuda:0", "cuda:1"]. Ranks train batches of their own and meet to average their weights. Each sample
of an epoch is trained once, and the rows of the history have the same columns. Each rank makes half of the
updates, so the run on two devices uses twice the learning rate, as for a batch of twice the size.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flodl import Trainer, manual_seed
from flodl.data import digits


def loss_of(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    logits = model(images)
    return cross_entropy(logits, labels), {"accuracy": (logits.argmax(dim=1) == labels).float().mean()}


def train(rate: float, **where: object) -> None:
    manual_seed(0)
    inputs, labels = digits(2000, seed=0)
    held_out = digits(500, seed=1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(inputs[0].numel(), 64), nn.ReLU(), nn.Linear(64, 10))
    trainer = Trainer(
        model,
        loss_of,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=rate),
        monitor=False,
        **where,
    )
    result = trainer.fit((inputs, labels), epochs=3, batch_size=32, eval_data=held_out)
    for row in result.history:
        print(f"  epoch {row['epoch']}: loss {row['loss']:.3f}, accuracy {row['eval_accuracy']:.1%}")
    if result.ranks is not None:
        print(f"  {result.ranks}".replace("\n", "\n  "))


if __name__ == "__main__":
    print("one device")
    train(2e-3, device="cpu")
    print("two devices")
    train(4e-3, devices=["cpu", "cpu"])
