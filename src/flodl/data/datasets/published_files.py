"""The official files of a data set: where they lie, how they are recognised, and how to get them."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flodl.core import environment
from flodl.core.errors import DataFileError
from flodl.core.files import expand_user

from .download import download


@dataclass(frozen=True)
class OfficialFile:
    """A file as its authors publish it; `sha256` is that of its content, unpacked if it is a `.gz`.

    Checking the content accepts the same data packed by somebody else, and unpacked.
    """

    name: str
    urls: tuple[str, ...]
    num_bytes: int
    md5: str
    sha256: str = ""

    @property
    def unpacked_name(self) -> str:
        return self.name.removesuffix(".gz")


@dataclass(frozen=True)
class Home:
    """Where the files of one data set are looked for."""

    root: Path
    folders: tuple[Path, ...]

    def find(self, *names: str) -> Path | None:
        """Give the first file with one of the names."""
        for folder in self.folders:
            for name in names:
                if (folder / name).is_file():
                    return folder / name
        return None

    @property
    def download_folder(self) -> Path:
        """Where a download goes."""
        return self.folders[0]

    def missing(self, name: str, urls: Sequence[str], call: str) -> DataFileError:
        """Say what was looked for, where, and how to get it."""
        looked = ", ".join(str(folder) for folder in self.folders)
        return DataFileError(
            f"there is no {name} in {looked}. Call {call} with download=True, or put the file there "
            f"yourself (it is published at {urls[0]}). The folder is root=, else $FLODL_DATA, else "
            "~/.cache/flodl/data."
        )


def home_of(root: str | os.PathLike[str] | None, *folders: str) -> Home:
    """Give the places for a data set: its folders under the root, then the root itself.

    >>> [str(folder) for folder in home_of("data", "mnist", "MNIST/raw").folders]
    ['data/mnist', 'data/MNIST/raw', 'data']
    """
    given = root if root is not None else environment.data_root_text()
    base = expand_user(given) if given is not None else Path.home() / ".cache" / "flodl" / "data"
    return Home(base, (*(base / folder for folder in folders), base))


def content_of(
    file: OfficialFile, home: Home, *, fetch: bool, mirror: str | None, verify: bool, call: str
) -> tuple[bytes, Path]:
    """Give the content of a file, unpacked and checked, and the path that it came from."""
    path = home.find(file.name, file.unpacked_name)
    if path is None:
        if not fetch:
            raise home.missing(file.name, file.urls, call)
        path = download(
            mirrored(file.urls, file.name, mirror),
            home.download_folder / file.name,
            num_bytes=file.num_bytes,
            md5=file.md5,
        )
    content = unpacked(path)
    if verify:
        check_hash(content, file.sha256, path)
    return content, path


def unpacked(path: Path) -> bytes:
    """Read a file, through gzip if its first bytes say so."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataFileError(
            f"{path} ({path.stat().st_size} bytes) is not a whole gzip file: {error}. "
            "Delete it and get it again."
        ) from None
    except OSError as error:
        raise DataFileError(f"{path} cannot be read: {error.strerror}.") from None


def check_hash(content: bytes, sha256: str, path: Path) -> None:
    """Refuse content that is not the published one."""
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataFileError(
            f"{path} is not the published file: its content has SHA-256 {found[:16]}…, expected "
            f"{sha256[:16]}…. Delete it and get it again, or give verify=False for a data set of your own "
            "in the same format."
        )


def mirrored(urls: tuple[str, ...], name: str, mirror: str | None) -> tuple[str, ...]:
    """Give the addresses of a file, that at a mirror of the user's alone where one is named.

    >>> mirrored(("https://example.org/a/x.gz",), "x.gz", "http://localhost/data/")
    ('http://localhost/data/x.gz',)
    """
    return urls if mirror is None else (f"{mirror.rstrip('/')}/{name}",)
