"""`fdl hf`: export, verify, compare and convert Hugging Face models."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from flodl.cli.machine.terminal import line_printer
from flodl.cli.options import CommandGroup, GivenPath, output_options

if TYPE_CHECKING:
    from flodl.hf import PretrainedModel

F = TypeVar("F", bound=Callable[..., Any])
_HEADS = ("auto", "base", "seqcls", "tokcls", "qa", "mlm")
_head = click.option(
    "--head",
    type=click.Choice(_HEADS),
    default="auto",
    help="The head of the model; auto reads it from config.json.",
)


def _source_options(function: F) -> F:
    """Add the options of a model on the hub."""
    for option in (
        click.option("--revision", metavar="NAME", help="A branch, tag or commit on the hub."),
        click.option("--token", metavar="TOKEN", help="The access token for a private model."),
        click.option(
            "--model-type", metavar="TYPE", help="The architecture, if config.json does not say it."
        ),
    ):
        function = option(function)
    return function


@click.group("hf", cls=CommandGroup, invoke_without_command=True)
@output_options
@click.pass_context
def command(ctx: click.Context) -> None:
    """Export, verify, compare and convert Hugging Face models.

    MODEL is a folder, or the name of a model on the hub (with the extra flodl[hf]).
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("export")
@click.argument("model")
@click.option("--out", type=GivenPath(), required=True, help="The folder to write.")
@click.option(
    "--weights",
    type=GivenPath(),
    help="A checkpoint of flodl with the weights of the trained model; without it, those of MODEL are used.",
)
@_head
@click.option("--dtype", metavar="TYPE", help="The type to write, such as bfloat16; by default the source's.")
@click.option(
    "--labels", metavar="A,B,…", help="The names of the labels; default: those in the weights, else MODEL's."
)
@click.option(
    "--new-head", is_flag=True, help="Allow a head that MODEL has no weights for. It is written untrained."
)
@_source_options
@click.option("--force", is_flag=True, help="Replace a model in the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@output_options
def export(
    model: str,
    out: Path,
    weights: Path | None,
    head: str,
    dtype: str | None,
    labels: str | None,
    new_head: bool,
    revision: str | None,
    token: str | None,
    model_type: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write MODEL, or a trained version of it, in the format of transformers."""
    from flodl.hf.files.folder import check_target

    check_target(out, force=force)
    options: dict[str, Any] = {"revision": revision, "token": token, "model_type": model_type}
    named = [name.strip() for name in labels.split(",")] if labels else None
    known = None if weights is None else _labels_of(weights, named)
    if known or named:
        options["labels"] = known or named
    loaded = _load(model, head, options)
    notes: list[str] = []
    if weights is not None:
        _load_trained(loaded, weights)
        notes = _notes_on_labels(loaded, weights)
    elif not new_head:
        _check_head(model, loaded)
    report = loaded.export(out, force=force, dtype=dtype)
    report = replace(report, notes=(*report.notes, *notes))
    if as_json:
        click.echo(json.dumps({"folder": str(report.folder), "files": report.files, "notes": report.notes}))
    else:
        line_printer()(f"Wrote {report}.")


@command.command("verify-export")
@click.argument("folder")
@click.option("--source", metavar="MODEL", help="The model that was exported, to compare every tensor.")
@click.option("--no-transformers", is_flag=True, help="Do not load the export with transformers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@output_options
def verify_export(folder: str, source: str | None, no_transformers: bool, as_json: bool) -> None:
    """Check that flodl and transformers load FOLDER completely and give the same outputs."""
    from flodl.hf import verify_export

    report = verify_export(folder, source=source, use_transformers=False if no_transformers else None)
    if as_json:
        click.echo(
            json.dumps({"checks": report.checks, "skipped": report.skipped, "dropped": report.dropped})
        )
    else:
        line_printer()(str(report))


@command.command("parity")
@click.argument("model")
@_head
@_source_options
@click.option("--no-gradients", is_flag=True, help="Compare the outputs only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@output_options
def parity(
    model: str,
    head: str,
    revision: str | None,
    token: str | None,
    model_type: str | None,
    no_gradients: bool,
    as_json: bool,
) -> int:
    """Compare MODEL in flodl and in transformers: outputs and gradients, in float32."""
    import tempfile

    from flodl.hf.parity import compare, load_reference

    options: dict[str, Any] = {"revision": revision, "token": token, "model_type": model_type}
    loaded = _load(model, head, {**options, "dtype": "float32"})
    assert loaded.source is not None
    with tempfile.TemporaryDirectory() as work:
        folder = loaded.source.folder
        if loaded.load_report is None or loaded.load_report.missing:
            # Both need the same new head.
            folder = loaded.export(Path(work) / "model").folder
        reference = load_reference(loaded.family.class_name(loaded.head), folder)
        found = list(compare(loaded, reference, gradients=not no_gradients))
    if as_json:
        click.echo(
            json.dumps([{"name": one.name, "difference": one.value, "ok": one.is_ok} for one in found])
        )
    else:
        for one in found:
            line_printer()(str(one))
    return 0 if all(one.is_ok for one in found) else 1


@command.command("convert")
@click.argument("model")
@click.option("--out", type=GivenPath(), required=True, help="The folder to write.")
@click.option("--revision", metavar="NAME", help="A branch, tag or commit on the hub.")
@click.option("--token", metavar="TOKEN", help="The access token for a private model.")
@click.option("--force", is_flag=True, help="Replace a model in the folder.")
@output_options
def convert(model: str, out: Path, revision: str | None, token: str | None, force: bool) -> None:
    """Convert the weights of MODEL (pytorch_model.bin) to safetensors, under the same keys.

    Nothing in the file is executed. The config and the tokenizer are copied. This works for every
    architecture.
    """
    from flodl.hf.files.convert import convert

    report = convert(model, out, revision=revision, token=token, force=force)
    line_printer()(f"Wrote {report}.")


def _load(model: str, head: str, options: dict[str, Any]) -> PretrainedModel:
    """Load a model with the given head, or the one in its config."""
    from flodl.hf.auto import AUTO, saved_head
    from flodl.hf.heads import Head

    where = {name: options[name] for name in ("revision", "token") if options.get(name)}
    kind = saved_head(model, **where) if head == "auto" else Head(head)
    loaded: PretrainedModel = AUTO[kind].from_pretrained(model, **options)
    return loaded


def _check_head(model: str, loaded: PretrainedModel) -> None:
    """Raise if the head would be exported with random weights. A base model may lack its pooler."""
    from flodl.core.errors import HFError
    from flodl.hf.heads import Head

    missing = loaded.load_report.missing if loaded.load_report is not None else ()
    if missing and loaded.head is not Head.BASE:
        labels = f" for {loaded.config.num_labels} labels" if loaded.head.has_labels else ""
        raise HFError(
            f"{model} has no weights for the head {loaded.head.value}{labels}, so {', '.join(missing[:4])} "
            "would be random. Pass the trained weights with --weights, or --new-head to export an untrained "
            "head."
        )


def _labels_of(weights: Path, named: list[str] | None) -> list[str] | None:
    """Return the names of the labels that the weights belong to; raise if `--labels` says otherwise."""
    from flodl.checkpoint import checkpoint_labels
    from flodl.core.errors import HFError

    saved = checkpoint_labels(weights)
    if saved is None or _are_numbered(saved):
        return None
    if named not in (None, saved):
        raise HFError(
            f"--labels is {','.join(named or [])}, but the head in {weights} predicts {','.join(saved)}, in "
            "this order. Leave out --labels: the names are in the weights."
        )
    return saved


def _notes_on_labels(model: PretrainedModel, weights: Path) -> list[str]:
    """Return a note if the labels of a classifier have no names."""
    names = model.config.labels
    if not model.head.has_labels or len(names) < 2 or not _are_numbered(names):
        return []
    return [f"{weights} has no label names, so they are {', '.join(names[:4])}: pass --labels A,B,…"]


def _are_numbered(names: Sequence[str]) -> bool:
    return [*names] == [f"LABEL_{index}" for index in range(len(names))]


def _load_trained(model: PretrainedModel, path: Path) -> None:
    """Load a checkpoint of the model itself or of its graph."""
    from flodl import checkpoint_keys, load_checkpoint

    keys = checkpoint_keys(path)
    is_whole = bool(keys) and all(key.startswith("graph.") for key in keys)
    load_checkpoint(path, (model if is_whole else model.graph).state_dict())
