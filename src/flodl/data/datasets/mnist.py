"""MNIST and Fashion-MNIST: 70,000 grayscale images of 28 by 28 pixels in ten classes."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from flodl.core.errors import DataFileError
from flodl.core.usage.calls import DataCallError, explain_calls

from .idx import parse_idx
from .images import scale
from .published_files import ELSEWHERE_FOR_IMAGES, DatasetFolders, PublishedFile, find_folders, read_published

_MNIST_AT = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FASHION_AT = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
)
_IMAGES, _LABELS = "images-idx3-ubyte.gz", "labels-idx1-ubyte.gz"


def _file(at: tuple[str, ...], name: str, num_bytes: int, md5: str, sha256: str) -> PublishedFile:
    return PublishedFile(name, tuple(base + name for base in at), num_bytes, md5, sha256)


_MNIST = (
    _file(
        _MNIST_AT,
        f"train-{_IMAGES}",
        9_912_422,
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    _file(
        _MNIST_AT,
        f"train-{_LABELS}",
        28_881,
        "d53e105ee54ea40749a09fcbcd1e9432",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    _file(
        _MNIST_AT,
        f"t10k-{_IMAGES}",
        1_648_877,
        "9fb629c4189551a2d022fa330f9573f3",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    _file(
        _MNIST_AT,
        f"t10k-{_LABELS}",
        4_542,
        "ec29112dd5afa0611ce80d1b7f02629c",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)
_FASHION = (
    _file(
        _FASHION_AT,
        f"train-{_IMAGES}",
        26_421_880,
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    _file(
        _FASHION_AT,
        f"train-{_LABELS}",
        29_515,
        "25c81989df183df01b3e8a0aad5dffbe",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    _file(
        _FASHION_AT,
        f"t10k-{_IMAGES}",
        4_422_102,
        "bef4ecab320f06d8554ea6380940ec79",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    _file(
        _FASHION_AT,
        f"t10k-{_LABELS}",
        5_148,
        "bb300cfdad3c16e7a12a480ee83cd310",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)


@explain_calls(DataCallError, elsewhere=ELSEWHERE_FOR_IMAGES)
def mnist(
    root: str | os.PathLike[str] | None = None,
    *,
    train: bool = True,
    download: bool = False,
    dtype: torch.dtype = torch.float32,
    verify: bool = True,
    mirror: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Return handwritten digits: images `[n, 1, 28, 28]` from 0 to 1, and labels.

    `train` selects the 60,000 training or the 10,000 test images; with `dtype=torch.uint8` they stay bytes.
    The files are looked up in `root` (or `$FLODL_DATA`, or `~/.cache/flodl/data`) and its folders `mnist`
    and `MNIST/raw`.
    """
    folders = find_folders(root, "mnist", "MNIST/raw")
    return _read(_MNIST, folders, train, download, dtype, verify, mirror, "flodl.data.mnist")


@explain_calls(DataCallError, elsewhere=ELSEWHERE_FOR_IMAGES)
def fashion_mnist(
    root: str | os.PathLike[str] | None = None,
    *,
    train: bool = True,
    download: bool = False,
    dtype: torch.dtype = torch.float32,
    verify: bool = True,
    mirror: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Return images of clothing, like `mnist`; the folders are `fashion-mnist` and `FashionMNIST/raw`."""
    folders = find_folders(root, "fashion-mnist", "FashionMNIST/raw")
    return _read(_FASHION, folders, train, download, dtype, verify, mirror, "flodl.data.fashion_mnist")


def _read(
    files: tuple[PublishedFile, ...],
    folders: DatasetFolders,
    train: bool,
    fetch: bool,
    dtype: torch.dtype,
    verify: bool,
    mirror: str | None,
    call: str,
) -> tuple[Tensor, Tensor]:
    parts = []
    for file, dimensions in zip(files[:2] if train else files[2:], (3, 1)):
        content, path = read_published(file, folders, fetch=fetch, mirror=mirror, verify=verify, call=call)
        found = parse_idx(content, path)
        if found.dim() != dimensions or found.dtype != torch.uint8:
            magic = 2051 if dimensions == 3 else 2049
            raise DataFileError(
                f"{path} has the magic number {int.from_bytes(content[:4], 'big')}, expected {magic}. "
                f"Is it a different file named {path.name}?"
            )
        parts.append(found)
    images, labels = parts
    if len(images) != len(labels):
        raise DataFileError(
            f"{len(images)} images and {len(labels)} labels: the files do not belong together."
        )
    return scale(images.unsqueeze(1), dtype), labels.to(torch.int64)
