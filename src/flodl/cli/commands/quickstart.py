"""`fdl quickstart`: train a small model and save its picture and checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from flodl.cli.options import GivenPath, output_options
from flodl.core import log
from flodl.core.errors import SetupError
from flodl.core.formats import counted, format_count, format_duration, format_metric

if TYPE_CHECKING:
    import torch

    from flodl import Graph, Trainer


@click.command("quickstart", context_settings={"show_default": True})
@click.option("--epochs", type=click.IntRange(1, 1000), default=6, help="Passes over the digits.")
@click.option("--images", type=click.IntRange(60, 200_000), default=12_000, help="Number of digits to draw.")
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, help="The same seed gives the same result."
)
@click.option(
    "--out",
    type=GivenPath(),
    default="runs/quickstart",
    help="Folder for the results. Without this option, a folder with earlier results is kept, and the new "
    "one is numbered: runs/quickstart-2.",
)
@click.option("--monitor", "live", is_flag=True, help="Show the training on a live page.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object; progress goes to stderr.")
@output_options
@click.pass_context
def command(
    ctx: click.Context, epochs: int, images: int, seed: int, out: Path, live: bool, as_json: bool
) -> None:
    """Train a small model on generated digits in less than a minute.

    Nothing is downloaded. The model is built with FlowBuilder; its picture, its checkpoint and a page
    with its learning curves are saved. After Ctrl-C, the same command resumes the training.
    """
    start = time.monotonic()

    def echo(line: str) -> None:
        if log.enabled(log.Verbosity.NORMAL):
            click.echo(line, err=as_json)  # with --json, standard output contains only the object

    if ctx.get_parameter_source("out") is ParameterSource.DEFAULT:
        usual, out = out, _free_folder(out)
        if out != usual:
            echo(f"The results are saved in {out}, because {usual} has those of an earlier run.")
    elif _has_results(out):
        echo(f"The results of an earlier run in {out} are replaced.")
    _make_folder(out)
    model, sample = _train(epochs, images, seed, out, echo, live)
    files = _save(model, sample, out)
    result: dict[str, Any] = {
        "accuracy": model.trend("eval_accuracy").latest,
        "loss": model.trend("loss").latest,
        "history": {name: list(model.trend(name).values) for name in ("loss", "eval_accuracy")},
        "settings": {"epochs": epochs, "images": images, "seed": seed},
        "files": {name: str(path) for name, path in files.items()},
        "seconds": round(time.monotonic() - start, 2),
    }
    if as_json:
        click.echo(json.dumps(result))
    else:
        echo(_summary(result, model))


def _train(
    epochs: int, images: int, seed: int, out: Path, echo: Callable[[str], None], live: bool
) -> tuple[Graph, torch.Tensor]:
    """Train a model; return it with a few of the test digits."""
    import torch

    import flodl
    from flodl.cli.quickstart_example import build_model, make_data, make_trainer

    flodl.manual_seed(seed)
    # One thread gives the same numbers on every machine. For such a small model, a second thread saves a
    # fifth of the time, and costs many times that when the other core is busy.
    torch.set_num_threads(1)
    torch.backends.cudnn.deterministic = True
    echo(f"Hardware: {_hardware()}")
    training, test = make_data(images, seed=seed)
    echo(f"Drew {images} digits: {len(training[1])} for training, {len(test[1])} for the test.")
    model = build_model()
    size = format_count(sum(parameter.numel() for parameter in model.parameters()))
    echo(
        f"Training a model with {size} parameters, built with FlowBuilder, for {counted(epochs, 'epoch')}.\n"
    )
    if not (out / "bundles").is_dir():
        (out / "journal.jsonl").unlink(missing_ok=True)
        shutil.rmtree(out / "journal.index", ignore_errors=True)
    with flodl.Monitor(epochs, out, name="quickstart", console=False) as monitor:
        if live:
            echo(f"Live page: {monitor.serve()}\n")
        batch_size = 128
        trainer = make_trainer(
            model,
            num_steps=epochs * -(-len(training[1]) // batch_size),
            seed=seed,
            monitor=monitor,
            checkpoint_dir=out,
            hooks=[_EpochLines(echo, epochs)],
        )
        try:
            trainer.fit(training, epochs=epochs, batch_size=batch_size, eval_data=test)
        except SystemExit:
            echo("Stopped. Run the same command to resume.")
            raise
    shutil.rmtree(out / "bundles", ignore_errors=True)  # finished: the next quickstart starts from scratch
    return model, test[0][:128].to(trainer.device)


class _EpochLines:
    """A hook that prints a line for each epoch."""

    def __init__(self, echo: Callable[[str], None], epochs: int) -> None:
        self._echo, self._epochs, self._last = echo, epochs, time.monotonic()

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: dict[str, float]) -> None:
        seconds, self._last = time.monotonic() - self._last, time.monotonic()
        shown = {"training loss": metrics["loss"], "test accuracy": metrics["eval_accuracy"]}
        metrics_text = "  ".join(f"{name}={format_metric(value)}" for name, value in shown.items())
        left = self._epochs - epoch - 1
        eta = f"  ETA {format_duration(seconds * left)}" if left else ""
        self._echo(f"epoch {epoch + 1}/{self._epochs}  {metrics_text}  [{format_duration(seconds)}{eta}]")


def _save(model: Graph, sample: torch.Tensor, out: Path) -> dict[str, Path]:
    """Save the weights first, because they are the hardest to reproduce."""
    files = {"picture": out / "model.svg", "trends": out / "trends.html", "checkpoint": out / "model.fdl"}
    model.eval()
    try:
        model.save_checkpoint(files["checkpoint"])
        model.plot_html(files["trends"])
        model.profile(sample)
        model.svg_with_profile(files["picture"])
    except OSError as error:
        raise SetupError(
            f"the model is trained, but {error.filename or out} cannot be written: {error.strerror}. "
            "Free some space or choose a different --out. Files saved before this one are complete."
        ) from None
    return files


def _summary(result: dict[str, Any], model: Graph) -> str:
    files, settings = result["files"], result["settings"]
    program = "./fdl" if Path("fdl").is_file() else "fdl"
    longer = f"{program} quickstart --epochs {2 * settings['epochs']}"
    still = " (the loss is still decreasing)" if model.trend("loss").improving(3) else ""
    return (
        f"\nTest accuracy: {100 * result['accuracy']:.2f} % after {format_duration(result['seconds'])}.\n\n"
        f"Picture of the model with the time of each part: {files['picture']}\n"
        f"Learning curves, to open in a browser:           {files['trends']}\n"
        f"Weights, for load_checkpoint:                    {files['checkpoint']}\n\n"
        "What to try next:\n"
        f"  {longer}{still}\n"
        f"  {program} quickstart --seed 1 --out runs/another --monitor\n"
        f"  {program} monitor {Path(files['checkpoint']).parent}\n"
        f"  read the source: {Path(__file__).parents[1] / 'quickstart_example.py'}"
    )


def _hardware() -> str:
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"
    return f"CPU with {os.cpu_count()} cores, PyTorch {torch.__version__}"


def _has_results(out: Path) -> bool:
    """Return whether a folder has the results of a run that was not interrupted."""
    return (out / "model.fdl").exists() and not (out / "bundles").is_dir()


def _free_folder(out: Path) -> Path:
    """Return a folder without results: this one, or the first numbered one that has none."""
    numbered = (out.with_name(f"{out.name}-{number}") for number in count(2))
    return next(folder for folder in chain([out], numbered) if not _has_results(folder))


def _make_folder(out: Path) -> None:
    """Check before the training that its results can be saved."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        writable = os.access(out, os.W_OK)
    except OSError as error:
        raise SetupError(f"--out {out}: {error.strerror}. Choose a folder that can be created.") from None
    if not writable:
        raise SetupError(f"--out {out}: the folder is not writable. Choose a different one.")
