"""Train a small network on MNIST. `fdl sweep` runs this with many settings."""

from dataclasses import dataclass
from pathlib import Path

from flodl.cli import Args, option


@dataclass(frozen=True)
class Settings:
    """Train a network with one hidden layer to read digits."""

    epochs: int = option(3, help="Number of epochs.")
    batch_size: int = option(128, help="Digits per step.")
    lr: float = option(1e-2, help="The learning rate of SGD with momentum.")
    hidden: int = option(64, help="Size of the hidden layer.")
    dropout: float = option(0.0, help="Dropout after the hidden layer.")
    images: int = option(10_000, help="Number of digits to train on.")
    output: Path = option(Path("runs/single"), help="Folder of the run. A run that is there is resumed.")  # noqa: RUF009


def train(settings: Settings) -> float:
    """Train, and return the accuracy on digits that were not trained on."""
    # Imported here, so that --help and the schema do not wait for torch.
    import torch
    from torch import nn

    import flodl
    from flodl import FlowBuilder, Trainer
    from flodl.core.errors import DataFileError
    from flodl.data import digits, mnist

    try:
        (x, y), (eval_x, eval_y) = mnist(train=True), mnist(train=False)
    except DataFileError:  # MNIST is not on this machine: generated digits instead
        (x, y), (eval_x, eval_y) = digits(settings.images), digits(1000, seed=1)
    flodl.manual_seed(0)
    model = (
        FlowBuilder(nn.Flatten())
        .through(nn.Linear(784, settings.hidden))
        .through(nn.ReLU())
        .through(nn.Dropout(settings.dropout))
        .through(nn.Linear(settings.hidden, 10))
        .build()
    )

    def classify(model, x, y):
        scores = model(x)
        return nn.functional.cross_entropy(scores, y), {"accuracy": (scores.argmax(1) == y).float().mean()}

    trainer = Trainer(
        model,
        classify,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=settings.lr, momentum=0.9),
        checkpoint_dir=settings.output,
        seed=0,
    )
    result = trainer.fit(
        (x[: settings.images], y[: settings.images]),
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        eval_data=(eval_x, eval_y),
    )
    return result.metrics["eval_accuracy"]


if __name__ == "__main__":
    print(f"accuracy: {train(Args(Settings).parse()):.2%}")
