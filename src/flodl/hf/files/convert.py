"""Converting a model whose weights are a file of `torch.save` to safetensors, key by key."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .export import ExportReport, is_model_file
from .folder import replace_folder
from .names import CONFIG, SENTENCE_FILES
from .source import open_source
from .tensors_file import MAX_SHARD_BYTES, write_tensors
from .weights import open_weights


def convert(
    repo_or_dir: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | None = None,
    force: bool = False,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> ExportReport:
    """Write all tensors of a model as safetensors under the same keys, with its config and tokenizer.

    No model is built, so this works for every architecture. Nothing in the source is executed.
    """
    source = open_source(repo_or_dir, revision=revision, token=token)
    with (
        open_weights(source.folder) as weights,
        replace_folder(folder, force=force, is_replaced=is_model_file) as work,
    ):
        tensors = {key: weights.read(key) for key in weights.tensors}
        files = write_tensors(work, tensors, max_shard_bytes=max_shard_bytes)
        others = [source.file(name) for name in (CONFIG, *SENTENCE_FILES[1:])]
        for path in (*others, *source.tokenizer_files()):
            if path is not None:
                shutil.copyfile(path, work / path.name)
                files.append(path.name)
    return ExportReport(Path(folder), tuple(sorted(files)), len(tensors))
