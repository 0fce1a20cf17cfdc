"""Where a model comes from: a local folder, a folder in sentence-transformers layout, or the hub."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flodl.core import HFError
from flodl.core.files import expand_user
from flodl.core.formats import a_type

from . import hub
from .json_file import read_json
from .names import CONFIG, MODULES, TOKENIZER_FILES, WEIGHTS

_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class Source:
    """The folder of a model on this machine.

    `folder` contains the config, the weights and usually the tokenizer. `root` is the same folder, or the one
    above it if `modules.json` says that the model is in a subfolder. `name` is what the user passed, and
    `revision` the commit if it was downloaded.
    """

    name: str
    folder: Path
    root: Path
    revision: str | None = None

    def file(self, name: str) -> Path | None:
        """Return the path of a file of the model, or None if there is no such file."""
        for folder in dict.fromkeys((self.folder, self.root)):
            if (folder / name).is_file():
                return folder / name
        return None

    def tokenizer_files(self) -> list[Path]:
        """Return the files of the tokenizer that exist."""
        found = (self.file(name) for name in TOKENIZER_FILES)
        return [path for path in found if path is not None]

    def __str__(self) -> str:
        return f"{self.name} (revision {self.revision})" if self.revision else self.name


def open_source(
    repo_or_dir: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    with_weights: bool = True,
) -> Source:
    """Return the folder of a model; a name that is not a folder is looked up on the hub."""
    if not isinstance(repo_or_dir, str | os.PathLike) or not os.fspath(repo_or_dir):
        shown = (
            repr(repo_or_dir)
            if repo_or_dir is None or isinstance(repo_or_dir, str)
            else f"{a_type(repo_or_dir)}"
        )
        raise HFError(
            f"the model is {shown}. Pass a folder, or the name of a model on the hub, such as "
            "'google-bert/bert-base-uncased'."
        )
    name = os.fspath(repo_or_dir)
    folder = expand_user(name)
    if folder.is_dir():
        if revision is not None:
            raise HFError(
                f"revision={revision!r} has no meaning for the folder {name}. Leave it out, or pass the name "
                "of a model on the hub."
            )
        source = _in_folder(name, folder)
    else:
        if folder.exists():
            raise HFError(f"{name} is a file. Pass the folder that contains config.json and the weights.")
        if isinstance(repo_or_dir, os.PathLike) or not _REPOSITORY.fullmatch(name) or name.startswith("."):
            raise HFError(
                f"the folder {name} does not exist. Pass an existing folder, or the name of a model on the "
                "hub, such as 'google-bert/bert-base-uncased'."
            )
        root = hub.download(
            name,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            with_weights=with_weights,
        )
        source = _in_folder(name, root, revision=root.name)
    if with_weights and find_weights(source.folder) is None:
        raise HFError(_no_weights(source.folder))
    return source


def find_weights(folder: Path) -> Path | None:
    """Return the file of the weights, or the index of their shards; None if there is neither."""
    return next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)


def _in_folder(name: str, root: Path, revision: str | None = None) -> Source:
    folder = root
    for path in sentence_modules(root, kind="Transformer"):
        folder = root / path
        break
    if not (folder / CONFIG).is_file():
        hint = ""
        if (folder / "adapter_config.json").is_file():
            hint = " The folder contains an adapter (LoRA), which is not supported: merge it into its model."
        raise HFError(f"{folder} has no {CONFIG}. Pass the folder that contains it and the weights.{hint}")
    return Source(name, folder, root, revision)


def sentence_modules(root: Path, *, kind: str) -> Iterator[str]:
    """Yield the subfolders of a sentence-transformers model with modules of a kind, such as "Transformer"."""
    if not (root / MODULES).is_file():
        return
    modules = read_json(root / MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise HFError(f"{root / MODULES} is not a list of modules. The file is damaged: download it again.")
    for module in modules:
        path, name = module.get("path", ""), module.get("type", "")
        if not isinstance(path, str) or not isinstance(name, str):
            raise HFError(f"{root / MODULES}: a module has the path {path!r} and the type {name!r}.")
        if path and not is_inside(path):
            raise HFError(f"{root / MODULES}: the path {path!r} leads out of the folder.")
        if name.rpartition(".")[2] == kind:
            yield path


def is_inside(path: str) -> bool:
    """Return whether a relative path that a file names stays in the folder of the file.

    >>> [is_inside(path) for path in ("1_Pooling", "a/b", "../a", "/etc", "a/../..", "")]
    [True, True, False, False, False, False]
    """
    parts = re.split(r"[/\\]", path)
    return (
        bool(path)
        and not Path(path).is_absolute()
        and not any(part in ("", "..") for part in parts)
        and ":" not in path
    )


def _no_weights(folder: Path) -> str:
    expected = ", ".join(WEIGHTS)
    others = sorted(
        path.name
        for path in folder.iterdir()
        if path.suffix in (".safetensors", ".bin", ".h5", ".msgpack", ".ot", ".onnx", ".pt", ".pth", ".gguf")
    )
    found = f" It has {', '.join(others[:4])}, which cannot be used." if others else ""
    return f"{folder} has no weights: expected one of {expected}.{found}"
