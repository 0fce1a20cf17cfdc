"""CIFAR-10: 60,000 color images of 32 by 32 pixels in ten classes."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flodl.core import files
from flodl.core.errors import DataFileError
from flodl.core.usage.calls import DataCallError, explain_calls

from .download import download as fetch
from .images import scale
from .published_files import (
    ELSEWHERE_FOR_IMAGES,
    DatasetFolders,
    PublishedFile,
    check_hash,
    find_folders,
    mirror_urls,
    read_decompressed,
)

ARCHIVE = PublishedFile(
    "cifar-10-binary.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    170_052_171,
    "c32a1d4ab5d03f1284b67883e8d87530",
)
_INSIDE = "cifar-10-batches-bin"
_SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_PIXELS = 3 * 32 * 32
_RECORD = 1 + _PIXELS
_IN_A_FILE = 10_000


@explain_calls(DataCallError, elsewhere=ELSEWHERE_FOR_IMAGES)
def cifar10(
    root: str | os.PathLike[str] | None = None,
    *,
    train: bool = True,
    download: bool = False,
    dtype: torch.dtype = torch.float32,
    verify: bool = True,
    mirror: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Return images `[n, 3, 32, 32]` from 0 to 1, and labels, from the binary version of the dataset.

    `train` selects the 50,000 training or the 10,000 test images; with `dtype=torch.uint8` they stay bytes.
    The `.bin` files are looked up in `root` (or `$FLODL_DATA`, or `~/.cache/flodl/data`) and its folders
    `cifar10` and `cifar-10-batches-bin`.
    """
    folders = find_folders(root, "cifar10", _INSIDE, f"cifar10/{_INSIDE}")
    names = [name for name in _SHA256 if name.startswith("data") == train]
    if any(folders.find(name) is None for name in names):
        _extract(folders, names, download, mirror)
    images = np.empty((len(names) * _IN_A_FILE, _PIXELS), dtype=np.uint8)
    labels = np.empty(len(names) * _IN_A_FILE, dtype=np.int64)
    for number, name in enumerate(names):
        path = folders.find(name)
        assert path is not None
        records = _records(path, _SHA256[name] if verify else None)
        rows = slice(number * _IN_A_FILE, (number + 1) * _IN_A_FILE)
        labels[rows], images[rows] = records[:, 0], records[:, 1:]
    return scale(torch.from_numpy(images).view(-1, 3, 32, 32), dtype), torch.from_numpy(labels)


def _records(path: Path, sha256: str | None) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    content = read_decompressed(path)
    if len(content) != _IN_A_FILE * _RECORD:
        raise DataFileError(
            f"{path} has {len(content)} bytes, expected {_IN_A_FILE * _RECORD}: {_IN_A_FILE} records of "
            f"{_RECORD}. It is truncated, or not the binary version. Download it again."
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(_IN_A_FILE, _RECORD)
    worst = int(records[:, 0].argmax())
    if records[worst, 0] > 9:
        raise DataFileError(
            f"{path}: record {worst} has label {records[worst, 0]}, expected 0 to 9. The file is damaged."
        )
    if sha256 is not None:
        check_hash(content, sha256, path)
    return records


def _extract(folders: DatasetFolders, names: list[str], wanted: bool, mirror: str | None) -> None:
    """Extract the files from the archive, which is downloaded if allowed."""
    archive = folders.find(ARCHIVE.name)
    if archive is None:
        if not wanted:
            missing = next(name for name in names if folders.find(name) is None)
            raise folders.missing_error(
                f"{missing} (or {ARCHIVE.name}, which contains it)", ARCHIVE.urls, "flodl.data.cifar10"
            )
        archive = fetch(
            mirror_urls(ARCHIVE.urls, ARCHIVE.name, mirror),
            folders.download_folder / ARCHIVE.name,
            num_bytes=ARCHIVE.num_bytes,
            md5=ARCHIVE.md5,
        )
    try:
        with tarfile.open(archive) as packed:
            for member in packed:
                name = Path(member.name).name
                if member.isfile() and name in _SHA256:
                    extracted = packed.extractfile(member)
                    assert extracted is not None
                    files.write_atomic(archive.parent / name, extracted.read())
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataFileError(
            f"{archive} cannot be extracted: {error}. Delete it and download it again."
        ) from None
    missing_now = [name for name in names if folders.find(name) is None]
    if missing_now:
        raise DataFileError(f"{archive} has no {missing_now[0]}. Delete it and download it again.")
