"""Downloading the files of a model from the hub into the cache of huggingface_hub."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from flodl.core import HFError, log
from flodl.hf.extra import require

from .names import CONFIG, MODULES, SENTENCE_FILES, TOKENIZER_FILES, WEIGHTS

_MODULE_FOLDER = re.compile(r"\d+_\w+")  # of a sentence-transformers model, such as 1_Pooling
_UNUSABLE = (".h5", ".msgpack", ".ot", ".onnx", ".gguf", ".pt", ".pth", ".ckpt")


def download(
    repository: str,
    *,
    revision: str | None,
    token: str | bool | None,
    cache_dir: str | os.PathLike[str] | None,
    local_files_only: bool,
    with_weights: bool,
) -> Path:
    """Return the folder of the cache with the files of a model, after downloading those that are missing.

    Only the files that flodl uses are downloaded. Without a connection, and in offline mode
    (`HF_HUB_OFFLINE=1`), the files in the cache are used.
    """
    library = require("huggingface_hub", f"downloading {repository!r} from the hub")
    hub = _Hub(library, repository, revision, token, cache_dir, local_files_only)
    first = hub.fetch(CONFIG) or hub.fetch(MODULES)
    if first is None:
        raise HFError(
            f"{hub} has neither {CONFIG} nor {MODULES}. Check that it is a model in the format of "
            "transformers or sentence-transformers."
        )
    hub.commit = first.parent.name
    names = hub.list_files()
    if names is None:
        names = set(hub.fetch_known_files(with_weights=with_weights))
    else:
        for name in files_to_fetch(names, with_weights=with_weights):
            hub.fetch(name)
    if with_weights and not any(PurePosixPath(name).name in WEIGHTS for name in names):
        if hub.is_offline:
            raise HFError(
                f"the copy of {hub} in the cache has no weights. Download them once with a connection, "
                "without local_files_only=True or HF_HUB_OFFLINE=1."
            )
        raise HFError(f"{hub} has no weights: expected one of {', '.join(WEIGHTS)}.{_others(names)}")
    return first.parent


def files_to_fetch(names: Collection[str], *, with_weights: bool) -> list[str]:
    """Return the files that flodl uses: config, tokenizer, and the preferred form of the weights.

    >>> names = ["config.json", "model.safetensors", "pytorch_model.bin", "README.md"]
    >>> files_to_fetch(names, with_weights=True)
    ['config.json', 'model.safetensors']
    """
    folders: dict[str, set[str]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        if not folder or _MODULE_FOLDER.fullmatch(folder):
            folders.setdefault(folder, set()).add(file)
    wanted = []
    for folder, files in sorted(folders.items()):
        chosen = [name for name in (CONFIG, *TOKENIZER_FILES, *SENTENCE_FILES) if name in files]
        if with_weights:
            chosen += _weight_files(files)
        wanted += [f"{folder}/{file}" if folder else file for file in chosen]
    return wanted


def _weight_files(files: set[str]) -> list[str]:
    """Return the preferred form of the weights in a folder: one file, or an index and shards."""
    found = next((name for name in WEIGHTS if name in files), None)
    if found is None or not found.endswith(".index.json"):
        return [found] if found else []
    stem, suffix = os.path.splitext(found.removesuffix(".index.json"))
    shard = re.compile(rf"{re.escape(stem)}-\d+-of-\d+{re.escape(suffix)}")
    return [found, *sorted(name for name in files if shard.fullmatch(name))]


class _Hub:
    """One repository at one revision, with errors that say what to do."""

    def __init__(
        self,
        library: Any,
        repository: str,
        revision: str | None,
        token: str | bool | None,
        cache_dir: str | os.PathLike[str] | None,
        local_files_only: bool,
    ) -> None:
        self._library = library
        self._constants = import_module("huggingface_hub.constants")
        self._errors = import_module("huggingface_hub.errors")
        self._repository = repository
        self._revision = revision
        self._token = token
        self._cache_dir = cache_dir
        self.is_offline = local_files_only or self._constants.HF_HUB_OFFLINE
        self.commit: str | None = None

    def __str__(self) -> str:
        at = f" at revision {self._revision!r}" if self._revision else ""
        return f"the model {self._repository!r}{at} on {self._constants.ENDPOINT}"

    def fetch(self, name: str) -> Path | None:
        """Return the path of a file in the cache; None if the repository does not have it."""
        errors = self._errors
        try:
            return Path(
                self._library.hf_hub_download(
                    self._repository,
                    name,
                    revision=self.commit or self._revision,
                    token=self._token,
                    cache_dir=self._cache_dir,
                    local_files_only=self.is_offline,
                )
            )
        except errors.LocalEntryNotFoundError as error:
            if self.is_offline and (self.commit is not None or name == CONFIG):
                # It is unknown if the repository has the file.
                return None
            raise self._explain(error, name) from error
        except errors.EntryNotFoundError:
            return None
        except (OSError, ValueError, AssertionError) as error:
            raise self._explain(error, name) from error
        except Exception as error:
            # Errors of the HTTP library, which is not the same in all versions of huggingface_hub.
            if not _is_network_error(error):
                raise
            raise self._explain(error, name) from error

    def list_files(self) -> set[str] | None:
        """Return the names of all files at the commit; None if the hub does not list them."""
        if self.is_offline:
            return None
        try:
            info = self._library.HfApi(token=self._token).model_info(self._repository, revision=self.commit)
        except Exception as error:
            if not isinstance(error, OSError | ValueError) and not _is_network_error(error):
                raise
            log.debug("hf: %s does not list its files: %s", self, error)
            if not isinstance(error, self._errors.HfHubHTTPError):
                self.is_offline = True
                log.warn(
                    f"hf: the hub cannot be reached. Using the copy of {self._repository!r} in the cache, "
                    f"revision {self.commit}."
                )
            return None
        return {file.rfilename for file in info.siblings or ()}

    def fetch_known_files(self, *, with_weights: bool) -> Iterator[str]:
        """Fetch files by the names that they usually have, and yield the names of those that exist."""
        yield from self._fetch_folder("", with_weights=with_weights)
        modules = self.fetch(MODULES)
        if modules is not None:
            # Checked when the model is opened; here, only folders with the usual names are fetched.
            for folder in sorted(set(_MODULE_FOLDER.findall(modules.read_text(errors="replace")))):
                yield from self._fetch_folder(f"{folder}/", with_weights=with_weights)

    def _fetch_folder(self, folder: str, *, with_weights: bool) -> Iterator[str]:
        for name in (CONFIG, *TOKENIZER_FILES, *SENTENCE_FILES):
            if self.fetch(folder + name):
                yield folder + name
        if not with_weights:
            return
        for name in WEIGHTS:
            path = self.fetch(folder + name)
            if path is None:
                continue
            yield folder + name
            if name.endswith(".index.json"):
                for shard in _shards_of(path):
                    self.fetch(folder + shard)
            return

    def _explain(self, error: Exception, name: str) -> HFError:
        """Return the error that says what happened and what to do."""
        errors = self._errors
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.GatedRepoError):
            return HFError(
                f"{self} is gated. Accept its conditions on its page, and pass token= or run `hf auth login`."
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return HFError(f"{self} does not exist: there is no such revision. Check its branches and tags.")
        if status in (401, 403) and self._token:
            return HFError(
                f"{self} cannot be read with this token ({status}). Check the token and its access."
            )
        if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403, 404):
            return HFError(
                f"{self} does not exist or is private ({status}). Check the name (a local folder of that "
                "name does not exist either). For a private model, pass token= or run `hf auth login`."
            )
        if isinstance(error, errors.HFValidationError):
            return HFError(f"{self._repository!r} is not a valid name of a model: {_first_line(error)}")
        if self.is_offline:
            return HFError(
                f"{self} is not in the cache, and offline mode is on. Download it once with a connection, "
                "without local_files_only=True or HF_HUB_OFFLINE=1."
            )
        if isinstance(error, errors.LocalEntryNotFoundError):
            return HFError(
                f"{self} cannot be reached, and it is not in the cache: "
                f"{_first_line(error.__cause__ or error)} Check the connection, or pass a local folder."
            )
        if isinstance(error, OSError) and error.errno is not None and not _is_network_error(error):
            where = self._cache_dir or self._constants.HF_HUB_CACHE
            return HFError(
                f"{name} of {self} cannot be stored in {where}: {error.strerror}. Free some disk space, or "
                "pass another cache_dir."
            )
        return HFError(
            f"the download of {name} of {self} was interrupted: {_first_line(error)} Nothing incomplete is "
            "used. Check the connection and try again."
        )


def _shards_of(index: Path) -> list[str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        # Paths are checked when the weights are opened; here, only plain file names are fetched.
        return sorted({name for name in weight_map.values() if re.fullmatch(r"[\w.-]+", name)})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _is_network_error(error: Exception) -> bool:
    classes = {cls.__module__.split(".")[0] for cls in type(error).__mro__}
    return bool(classes & {"httpx", "httpx2", "requests", "urllib3", "huggingface_hub"})


def _first_line(error: BaseException) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return text if text.endswith((".", "!")) else f"{text}."


def _others(names: Collection[str]) -> str:
    found = sorted(name for name in names if name.endswith((*_UNUSABLE, ".safetensors", ".bin")))
    return f" It has {', '.join(found[:4])}, which cannot be used." if found else ""
