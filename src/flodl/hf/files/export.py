"""Writing a model as transformers does: weights, config, tokenizer and sentence-transformers files."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flodl.core import HFError
from flodl.graph import Graph

from ..config import EncoderConfig
from ..heads import Head
from ..registry import Family
from .dtypes import parse_dtype
from .folder import check_target, replace_folder
from .json_file import read_json
from .load import Stored
from .names import CONFIG, MODULES, SENTENCE_FILES, TOKENIZER_FILES, WEIGHTS
from .source import Source, sentence_modules
from .tensors_file import MAX_SHARD_BYTES, write_tensors

_REPLACED = {CONFIG, *WEIGHTS, *TOKENIZER_FILES, *SENTENCE_FILES}
_SHARD = re.compile(r"(model|pytorch_model)-\d+-of-\d+\.(safetensors|bin)")


@dataclass(frozen=True)
class ExportReport:
    """What was written."""

    folder: Path
    files: tuple[str, ...]
    num_tensors: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"{self.folder}: {self.num_tensors} tensors in {len(self.files)} files"]
        return "; ".join([*parts, *self.notes])


@dataclass(frozen=True)
class Exported:
    """A model to export: its graph, what it is, and where it comes from."""

    graph: Graph
    family: Family
    config: EncoderConfig
    head: Head
    stored: Stored
    source: Source | None = None
    tokenizer_files: Iterable[Path] = ()


def export_model(
    model: Exported,
    folder: str | os.PathLike[str],
    *,
    force: bool = False,
    dtype: torch.dtype | str | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> ExportReport:
    """Write a model to a folder, completely or not at all.

    The keys are those that transformers writes, and the types and shards those of the source. A source in a
    narrower type than the model's keeps its type if no value changed; after training, the model's type is
    written. `dtype` chooses another type.
    """
    check_target(folder, force=force)
    chosen = parse_dtype(dtype)
    tensors = model.family.keys(model.config, model.head).to_checkpoint(model.graph)
    for key, tensor in tensors.items():
        if tensor.is_meta:
            raise HFError(f"the tensor {key!r} has no values: the model is on the meta device.")
    tensors, notes = choose_types(tensors, model.stored, chosen)
    shards = model.stored.shards if max_shard_bytes == MAX_SHARD_BYTES else None
    with replace_folder(folder, force=force, is_replaced=is_model_file) as work:
        files = write_tensors(work, tensors, shards=shards, max_shard_bytes=max_shard_bytes)
        files.append(_write_config(work, model, tensors))
        for path in model.tokenizer_files:
            shutil.copyfile(path, work / path.name)
            files.append(path.name)
        if model.head is Head.BASE and model.source is not None:
            files += _copy_sentence_files(work, model.source)
    if not model.tokenizer_files:
        notes.append("without a tokenizer, because the model has none")
    return ExportReport(Path(folder), tuple(sorted(files)), len(tensors), tuple(notes))


def choose_types(
    tensors: Mapping[str, Tensor], stored: Stored, dtype: torch.dtype | None
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors in the types to write, and a note if these differ from the source's."""
    if dtype is not None:
        return {key: tensor.to(dtype) for key, tensor in tensors.items()}, []
    narrowed: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        before = stored.dtypes.get(key, tensor.dtype)
        if before == tensor.dtype or torch.promote_types(before, tensor.dtype) != tensor.dtype:
            narrowed[key] = tensor
            continue
        narrowed[key] = tensor.to(before)
        if not _is_equal(narrowed[key].to(tensor.dtype), tensor):
            return dict(tensors), [
                f"as {_name(tensor.dtype)}, because {key} no longer fits the {_name(before)} of the source"
            ]
    return narrowed, []


def export_config(model: Exported, dtypes: set[torch.dtype]) -> dict[str, Any]:
    """Return the config of the source with the class, labels and type of this model."""
    raw = dict(model.config.raw)
    raw["model_type"] = model.family.model_type
    raw["architectures"] = [model.family.class_name(model.head)]
    if model.head.has_labels:
        raw.update(_labels(raw, model))
    for name in ("dtype", "torch_dtype"):
        if isinstance(raw.get(name), str) and len(dtypes) == 1:
            raw[name] = _name(next(iter(dtypes)))
    return raw


def _labels(raw: Mapping[str, Any], model: Exported) -> dict[str, Any]:
    labels = model.config.labels
    if model.family.read_config(raw).labels == labels and (len(labels) == 2 or "id2label" in raw):
        return {}
    changed: dict[str, Any] = {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
    if "num_labels" in raw:
        changed["num_labels"] = len(labels)
    return changed


def _write_config(work: Path, model: Exported, tensors: Mapping[str, Tensor]) -> str:
    config = export_config(model, {tensor.dtype for tensor in tensors.values()})
    original = model.source.file(CONFIG) if model.source is not None else None
    if original is not None and original.is_file() and _same(original, config):
        shutil.copyfile(original, work / CONFIG)
    else:
        text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)
        (work / CONFIG).write_text(text + "\n", encoding="utf-8")
    return CONFIG


def _same(path: Path, config: dict[str, Any]) -> bool:
    try:
        return bool(read_json(path) == config)
    except HFError:  # the file has changed since the model was loaded
        return False


def _copy_sentence_files(work: Path, source: Source) -> list[str]:
    """Copy the files of a sentence-transformers model, with the transformer in the root folder."""
    modules = source.root / MODULES
    if not modules.is_file():
        return []
    content = read_json(modules)
    inner = list(sentence_modules(source.root, kind="Transformer"))
    for module in content:
        if module.get("path") in inner:
            module["path"] = ""
    if any(inner):
        (work / MODULES).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    else:
        shutil.copyfile(modules, work / MODULES)
    written = [MODULES]
    for name in SENTENCE_FILES[1:]:
        if (path := source.file(name)) is not None:
            shutil.copyfile(path, work / name)
            written.append(name)
    for path in (source.root / module["path"] for module in content if module.get("path")):
        for file in sorted(path.rglob("*")):
            if file.is_file():
                name = file.relative_to(source.root)
                (work / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, work / name)
                written.append(name.as_posix())
    return written


def is_model_file(name: str) -> bool:
    """Return whether a file belongs to a model, and is replaced when another one is written."""
    return name in _REPLACED or bool(_SHARD.fullmatch(name))


def _is_equal(first: Tensor, second: Tensor) -> bool:
    return bool(((first == second) | (first.isnan() & second.isnan())).all())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
