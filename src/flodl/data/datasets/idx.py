"""The IDX file format of MNIST."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flodl.core.errors import DataError, DataFileError
from flodl.core.files import expand_user
from flodl.core.output_files import check_path

from .published_files import read_decompressed

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | os.PathLike[str]) -> Tensor:
    """Read an IDX file of any type and shape, compressed with gzip or not."""
    check_path(path, example="train-images-idx3-ubyte.gz", error=DataError)
    file = expand_user(path)
    return parse_idx(read_decompressed(file), file)


def parse_idx(content: bytes, path: Path) -> Tensor:
    """Parse the content of an IDX file; `path` is for error messages.

    >>> parse_idx(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6]), Path("small"))
    tensor([[1, 2, 3],
            [4, 5, 6]], dtype=torch.uint8)
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES:
        raise DataFileError(
            f"{path} is not an IDX file: it starts with {content[:4].hex(' ') or 'nothing'}, expected 00 00, "
            "a type code and the number of dimensions."
        )
    dtype, dimensions = np.dtype(_TYPES[content[2]]), content[3]
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DataFileError(f"{path} ends inside its header, after {len(content)} bytes.")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    expected = math.prod(shape) * dtype.itemsize
    if len(content) - header != expected:
        raise DataFileError(
            f"{path} claims {' × '.join(map(str, shape))} numbers, which take {expected} bytes, but has "
            f"{len(content) - header}. It is truncated or damaged. Download it again."
        )
    values = np.frombuffer(content, dtype=dtype, offset=header).reshape(shape)
    return torch.from_numpy(values.astype(dtype.newbyteorder("=")))
