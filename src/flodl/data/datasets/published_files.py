"""The published files of a dataset: find, download, read and verify them."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flodl.core import environment
from flodl.core.errors import DataError, DataFileError
from flodl.core.files import expand_user
from flodl.core.output_files import check_path_type

from .download import download

# Names that others use for an argument of a dataset, and what to write here.
ELSEWHERE = dict.fromkeys(("dir", "folder", "path", "data_dir", "cache_dir", "data"), "Write root=….")
ELSEWHERE_FOR_IMAGES = {
    **ELSEWHERE,
    **dict.fromkeys(("transform", "target_transform"), "Pass it to the loader: Loader(data, 32, augment=…)."),
    "split": "Write train=True or train=False.",
    "test": "Write train=False.",
}


@dataclass(frozen=True)
class PublishedFile:
    """A file as its authors publish it; `sha256` is that of its content, decompressed if it is a `.gz`.

    Checking the content also accepts the same data decompressed, or compressed differently.
    """

    name: str
    urls: tuple[str, ...]
    num_bytes: int
    md5: str
    sha256: str = ""

    @property
    def decompressed_name(self) -> str:
        return self.name.removesuffix(".gz")


@dataclass(frozen=True)
class DatasetFolders:
    """The folders that are searched for the files of one dataset."""

    root: Path
    folders: tuple[Path, ...]

    def find(self, *names: str) -> Path | None:
        """Return the first file with one of the names, or None."""
        for folder in self.folders:
            for name in names:
                if (folder / name).is_file():
                    return folder / name
        return None

    @property
    def download_folder(self) -> Path:
        """The folder for downloads."""
        return self.folders[0]

    def missing_error(self, name: str, urls: Sequence[str], call: str) -> DataFileError:
        """Return the error for a missing file: which folders were searched, and how to get it."""
        searched = ", ".join(str(folder) for folder in self.folders)
        return DataFileError(
            f"there is no {name} in {searched}. Call {call} with download=True, or put the file there "
            f"yourself (it is published at {urls[0]}). The folder is root=, or $FLODL_DATA, or "
            "~/.cache/flodl/data."
        )


def find_folders(root: str | os.PathLike[str] | None, *folders: str) -> DatasetFolders:
    """Return the folders of a dataset: those under the root, then the root itself.

    >>> [str(folder) for folder in find_folders("data", "mnist", "MNIST/raw").folders]
    ['data/mnist', 'data/MNIST/raw', 'data']
    """
    if root is not None:
        check_path_type(root, what="folder", example="data", error=DataError)
    if root is not None and not os.fspath(root):
        raise DataError("root='' is empty. Pass a folder, or omit root; '.' is the working directory.")
    root = root if root is not None else environment.data_root_text()
    base = expand_user(root) if root is not None else Path.home() / ".cache" / "flodl" / "data"
    return DatasetFolders(base, (*(base / folder for folder in folders), base))


def read_published(
    file: PublishedFile, folders: DatasetFolders, *, fetch: bool, mirror: str | None, verify: bool, call: str
) -> tuple[bytes, Path]:
    """Return the content of a file, decompressed and verified, and its path."""
    path = folders.find(file.name, file.decompressed_name)
    if path is None:
        if not fetch:
            raise folders.missing_error(file.name, file.urls, call)
        path = download(
            mirror_urls(file.urls, file.name, mirror),
            folders.download_folder / file.name,
            num_bytes=file.num_bytes,
            md5=file.md5,
        )
    content = read_decompressed(path)
    if verify:
        check_hash(content, file.sha256, path)
    return content, path


def read_decompressed(path: Path) -> bytes:
    """Return the content of a file, decompressed if it starts like a gzip file."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataFileError(
            f"{path} ({path.stat().st_size} bytes) is not a complete gzip file: {error}. "
            "Delete it and download it again."
        ) from None
    except OSError as error:
        raise DataFileError(f"{path} cannot be read: {error.strerror}.") from None


def check_hash(content: bytes, sha256: str, path: Path) -> None:
    """Raise if the content is not that of the published file."""
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataFileError(
            f"{path} is not the published file: its content has SHA-256 {found[:16]}…, expected "
            f"{sha256[:16]}…. Delete it and download it again, or pass verify=False for your own dataset "
            "in the same format."
        )


def mirror_urls(urls: tuple[str, ...], name: str, mirror: str | None) -> tuple[str, ...]:
    """Return the URLs of a file; if the user named a mirror, only the URL there.

    >>> mirror_urls(("https://example.org/a/x.gz",), "x.gz", "http://localhost/data/")
    ('http://localhost/data/x.gz',)
    """
    return urls if mirror is None else (f"{mirror.rstrip('/')}/{name}",)
