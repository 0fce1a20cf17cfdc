"""Verifying an export: its files, its tensors, and that flodl and transformers load it completely."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from flodl.core import HFError
from flodl.core.files import expand_user
from flodl.core.formats import a_type

from .auto import AUTO
from .files.json_file import read_object
from .files.names import CONFIG
from .files.source import Source, open_source
from .files.weights import Weights, open_weights
from .heads import Head
from .models import PretrainedModel
from .parity import compare, load_reference
from .registry import head_of
from .usage.calls import explained


@dataclass(frozen=True)
class VerifyReport:
    """The checks that an export passed, one line each."""

    folder: Path
    checks: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    dropped: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"ok       {check}" for check in self.checks]
        lines += [f"skipped  {check}" for check in self.skipped]
        lines += [f"dropped  {key}: {reason}" for key, reason in self.dropped.items()]
        return "\n".join(lines)


@explained("Write verify_export(folder).")
def verify_export(
    folder: str | os.PathLike[str],
    *,
    source: PretrainedModel | str | os.PathLike[str] | None = None,
    use_transformers: bool | None = None,
) -> VerifyReport:
    """Check an exported model, and raise an error that names the first tensor or key that is wrong.

    With `source`, every tensor must equal that of the model it comes from, bit for bit: the model itself, or
    the folder or the name of one that has not been trained since. An export in another dtype is compared
    with the source cast to that dtype. If transformers is installed (or `use_transformers=True`), it must
    load the folder with nothing missing or unexpected, and give the same outputs as flodl.
    """
    if not isinstance(folder, str | os.PathLike):
        raise HFError(f"the folder is {a_type(folder)}. Pass the path of an export.")
    path = expand_user(folder)
    if not path.is_dir():
        raise HFError(f"the folder {folder} does not exist. Pass the folder of an export.")
    export = open_source(path)
    raw = read_object(export.folder / CONFIG)
    head = head_of(raw)
    checks: list[str] = []
    skipped: list[str] = []
    dropped: dict[str, str] = {}
    with open_weights(export.folder) as weights:
        checks.append(_check_files(weights))
    model: PretrainedModel = AUTO[head].from_pretrained(path, dtype=torch.float32)
    checks.append(_check_load(model, export))
    if source is not None:
        with _as_folder(source) as original:
            name = "the model" if isinstance(source, PretrainedModel) else str(original)
            line, dropped = _check_source(model, head, export, original, name)
        checks.append(line)
    else:
        skipped.append("the source: pass it to compare every tensor")
    if use_transformers or (use_transformers is None and find_spec("transformers")):
        checks += _check_transformers(model, export)
    else:
        skipped.append("transformers: it is not installed or not requested")
    return VerifyReport(path, tuple(checks), tuple(skipped), dropped)


@contextmanager
def _as_folder(source: PretrainedModel | str | os.PathLike[str]) -> Iterator[Source]:
    """Yield the folder of a source; a model is exported for the duration of the comparison."""
    if not isinstance(source, PretrainedModel):
        yield open_source(source)
        return
    with TemporaryDirectory(prefix="flodl-") as folder:
        source.export(Path(folder) / "model")
        yield open_source(Path(folder) / "model")


def _check_files(weights: Weights) -> str:
    if weights.metadata.get("format") != "pt":
        raise HFError(
            f"{weights.path} is not marked with the format 'pt', which transformers needs. Export it again."
        )
    total = sum(1 for _ in weights.tensors)
    files = {stored.path.name for stored in weights.tensors.values()}
    return f"files: {total} tensors in {', '.join(sorted(files))}"


def _check_load(model: PretrainedModel, export: Source) -> str:
    report = model.load_report
    assert report is not None
    for what, keys in (
        ("missing", report.missing),
        ("unexpected", report.unexpected),
        ("not needed", tuple(report.dropped)),
        ("in an old spelling", tuple(report.renamed)),
    ):
        if keys:
            raise HFError(f"{export.folder}: {keys[0]!r} is {what} ({len(keys)} in all). Export it again.")
    return f"flodl: {model.family.class_name(model.head)} loads it, nothing missing or unexpected"


def _check_source(
    model: PretrainedModel, head: Head, export: Source, source: Source, name: str
) -> tuple[str, dict[str, str]]:
    """Compare every tensor with the source, after the canonicalization of keys."""
    keys = model.family.keys(model.config, head)
    with open_weights(export.folder) as written, open_weights(source.folder) as original:
        plan = keys.plan(model.graph, original.tensors)
        if plan.missing:
            lacking = sorted(plan.missing.values())
            raise HFError(
                f"{name} has no tensor {lacking[0]!r} ({len(lacking)} in all), but the export has: a new "
                "head was added, so the two cannot be compared."
            )
        pairs = {keys.key_of(name): key for name, key in plan.sources.items()}
        dtype = _other_dtype(written, original, pairs)
        for current, key in pairs.items():
            expected = original.read(key) if dtype is None else original.read(key).to(dtype)
            _check_same(written.read(current), expected, f"{export.folder}: {current!r}", key)
    copies = {key: f"tied to {owner}" for key, owner in plan.duplicates.items()}
    ignored = dict.fromkeys(plan.unexpected, "unknown to this family")
    cast = "" if dtype is None else f" cast to {_name(dtype)}"
    line = f"source: {len(plan.sources)} tensors equal those of {name}{cast}, bit for bit"
    return line, {**plan.dropped, **copies, **ignored}


def _other_dtype(written: Weights, original: Weights, pairs: Mapping[str, str]) -> torch.dtype | None:
    """Return the dtype that the whole export was cast to; None if tensors must have those of the source."""
    dtypes = {key: written.tensors[key].dtype for key in pairs}
    if len(set(dtypes.values())) != 1:
        return None
    is_same = all(dtypes[key] == original.tensors[before].dtype for key, before in pairs.items())
    return None if is_same else next(iter(dtypes.values()))


def _check_same(value: Tensor, expected: Tensor, where: str, key: str) -> None:
    if value.dtype != expected.dtype or value.shape != expected.shape:
        raise HFError(
            f"{where} is {_describe(value)}, but {key!r} of the source is {_describe(expected)}. "
            "Export it again."
        )
    if not torch.equal(_bits(value), _bits(expected)):
        raise HFError(
            f"{where} differs from {key!r} of the source. The model was trained, or a file is damaged."
        )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _describe(tensor: Tensor) -> str:
    return f"{_name(tensor.dtype)} {tuple(tensor.shape)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_transformers(model: PretrainedModel, export: Source) -> list[str]:
    name = model.family.class_name(model.head)
    reference: Any = load_reference(name, export.folder)
    for what, keys in (("missing", reference.missing), ("unexpected", reference.unexpected)):
        if keys:
            raise HFError(
                f"transformers says that {keys[0]!r} of {export.folder} is {what}. Export it again."
            )
    lines = [f"transformers: {name} loads it, nothing missing or unexpected"]
    with torch.no_grad():
        for difference in compare(model, reference, gradients=False):
            if not difference.is_ok:
                raise HFError(f"{export.folder}: flodl and transformers differ in {difference}.")
            lines.append(f"transformers: {difference}")
    return lines
