"""Files of `torch.save`, read with `weights_only=True`: torch's restricted unpickler builds tensors and plain
containers, and calls no function that the file names."""

from __future__ import annotations

import os
import pickletools
import re
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flodl.core import CheckpointError
from flodl.core.formats import a_type

from .byte_reader import display_name
from .pickle_cost import check_cost
from .safetensors import aligned

LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9c"

File = str | os.PathLike[str] | memoryview

_UNSAFE_CLASS = re.compile(r"GLOBAL (\S+) (was not an allowed|whose module)")
_FIRST_BYTES = 1024
# Containers can refer to each other, so a small file can stand for any number of names.
_MAX_DEPTH = 100
MAX_NAMES = 1_000_000
_MAX_ITEMS = 20_000_000
_MAX_NAME_CHARACTERS = 100_000_000


def read(source: File) -> dict[str, Tensor]:
    """Return all tensors of the file; nested dicts become dotted names, other values are skipped."""
    if not isinstance(source, memoryview):
        return _read_mapped(source, display_name(source))
    # Mapped, too: torch reads beyond the end of a record whose length the file misstates, but not of a file.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "stream.pt"
        path.write_bytes(source)
        return _read_mapped(path, "the stream")


def _read_mapped(path: str | os.PathLike[str], where: str) -> dict[str, Tensor]:
    _check_members(path, where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols, which the user cannot change
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        found = _UNSAFE_CLASS.search(str(error))
        if found is not None:
            raise _unsafe_error(path, where, found[1], is_blocked=found[2] == "whose module") from error
        if "TorchScript" in str(error):
            raise CheckpointError(
                f"{where} is a TorchScript program, not a dict of tensors. Programs are not "
                f"loaded. Save only its weights: {_conversion(where, 'torch.jit.load({}).state_dict()')}"
            ) from error
        # A damaged file can raise any error. Only the first line is shown: torch's advice to disable safety
        # comes after it.
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ValueError(f"torch cannot read it safely ({reason})") from error
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{where} contains {a_type(content)}, not a dict of tensors. "
            "Save a dict, for example torch.save(model.state_dict(), 'weights.pt')"
        )
    return {name: aligned(tensor, tensor.element_size()) for name, tensor in _Names().of(content)}


def _check_members(path: str | os.PathLike[str], where: str) -> None:
    """Raise if tensors are compressed, which torch does not detect, or if the pickle would take very long."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            pickles = [
                archive.read(member)
                for member in members
                if member.filename.endswith("data.pkl") and member.compress_type == zipfile.ZIP_STORED
            ]
    except Exception as error:  # a damaged file can raise any error
        raise ValueError(f"torch cannot read it safely ({error})") from error
    if members and not any(member.filename.endswith("data.pkl") for member in members):
        raise CheckpointError(
            f"{where} is an archive that torch.save did not write: it contains {members[0].filename!r:.80}. "
            "Nothing was loaded. Extract it, and pass the file with the weights."
        )
    # The code of a TorchScript program is compressed; it is never loaded.
    if any(m.compress_type != zipfile.ZIP_STORED for m in members if "/data" in f"/{m.filename}"):
        raise CheckpointError(
            f"{where} is a compressed archive, not one that torch.save wrote. Nothing was loaded. "
            "Extract it, and create it again without compression, for example with zip -0."
        )
    for pickled in pickles:
        check_cost(pickled)


def legacy_error(where: str) -> CheckpointError:
    """Return the error for the legacy format, in which a file can demand any amount of memory."""
    return CheckpointError(
        f"{where} is in the format used before torch 1.6, which is not supported. "
        f"Save it again: {_conversion(where, 'torch.load({}, weights_only=True)')}"
    )


def _unsafe_error(
    path: str | os.PathLike[str], where: str, class_name: str, *, is_blocked: bool
) -> CheckpointError:
    """Return the error for a file that contains objects other than tensors."""
    if is_blocked:
        return CheckpointError(
            f"{where} calls {class_name!r}, which no model needs: it may be an attack. "
            "Nothing was loaded or executed. Do not load it elsewhere either."
        )
    if _is_outermost(path, class_name):
        what = f"a whole object of {class_name}, not a dict of tensors"
        convert = _conversion(where, "torch.load({}, weights_only=False).state_dict()")
    else:
        what = f"an object of {class_name} in addition to its tensors"
        convert = _conversion(where, "torch.load({}, weights_only=False)['model']") + " (or their actual key)"
    return CheckpointError(
        f"{where} contains {what}. It is not loaded, because restoring anything but tensors "
        f"executes code that the file names. If you trust it, save only its tensors: {convert}"
    )


def _is_outermost(path: str | os.PathLike[str], class_name: str) -> bool:
    """Return whether the outermost value is of that class, by inspecting the first opcodes."""
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = next(member for member in archive.namelist() if member.endswith("data.pkl"))
            with archive.open(pickled) as file:
                opcodes = pickletools.genops(file.read(_FIRST_BYTES))
        first = next(argument for opcode, argument, _ in opcodes if opcode.name != "PROTO")
    except Exception:  # a damaged file can raise any error
        return False
    return str(first).replace(" ", ".") == class_name


def _conversion(where: str, expression: str) -> str:
    """Return the line of Python that converts the file; `{}` in the expression stands for its name."""
    name = "'model.pt'" if where == "the stream" else where
    return f"torch.save({expression.format(name)}, 'weights.pt')"


class _Names:
    """The dotted names of the tensors in nested dicts; raises ValueError if there are implausibly many."""

    def __init__(self) -> None:
        self._num_names = self._num_characters = self._num_items = 0

    def of(self, table: Mapping[Any, Any], prefix: str = "", depth: int = 1) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor; values that are neither tensors nor dicts are skipped."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"its dicts are nested more than {_MAX_DEPTH} deep, or contain themselves")
        self._num_items += len(table)
        if self._num_items > _MAX_ITEMS:
            raise ValueError(f"its nested dicts have more than {_MAX_ITEMS} items")
        for key, value in table.items():
            if not isinstance(value, Tensor | Mapping):
                continue
            name = f"{prefix}{key}"
            self._count(name)
            if isinstance(value, Tensor):
                yield name, value.detach()
            else:
                yield from self.of(value, f"{name}.", depth + 1)

    def _count(self, name: str) -> None:
        self._num_names += 1
        self._num_characters += len(name)
        if self._num_names > MAX_NAMES or self._num_characters > _MAX_NAME_CHARACTERS:
            raise ValueError(f"its nested dicts have more than {MAX_NAMES} names, or very long ones")
