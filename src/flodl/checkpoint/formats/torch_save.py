"""Files of `torch.save`, read without executing anything in them."""

from __future__ import annotations

import io
import os
import pickletools
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from flodl.core import CheckpointError

from .byte_reader import display_name

ZIP_MAGIC = b"PK"
LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9c"

File = str | os.PathLike[str] | io.BytesIO

_UNSAFE_CLASS = re.compile(r"GLOBAL (\S+) (was not an allowed|whose module)")
_FIRST_BYTES = 1024


def read(source: File) -> dict[str, Tensor]:
    """Return all tensors of the file; nested dicts become dotted names, other values are skipped."""
    mapped = not isinstance(source, io.BytesIO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols, which the user cannot change
            content = torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        found = _UNSAFE_CLASS.search(str(error))
        if found is not None:
            raise _unsafe_error(source, found[1], is_blocked=found[2] == "whose module") from error
        if "TorchScript" in str(error):
            raise CheckpointError(
                f"{display_name(source)} is a TorchScript program, not a dict of tensors. Programs are not "
                f"loaded. Save only its weights: {_conversion(source, 'torch.jit.load({}).state_dict()')}"
            ) from error
        # A damaged file can raise any error. Only the first line is shown: torch's advice to disable safety
        # comes after it.
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ValueError(f"torch cannot read it safely ({reason})") from error
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{display_name(source)} contains a {type(content).__name__}, not a dict of tensors. "
            "Save a dict, for example torch.save(model.state_dict(), 'weights.pt')"
        )
    return dict(_flatten(content, ""))


def legacy_error(source: File) -> CheckpointError:
    """Return the error for the legacy format, in which a file can demand any amount of memory."""
    return CheckpointError(
        f"{display_name(source)} is in the format used before torch 1.6, which is not supported. "
        f"Save it again: {_conversion(source, 'torch.load({}, weights_only=True)')}"
    )


def _unsafe_error(source: File, class_name: str, *, is_blocked: bool) -> CheckpointError:
    """Return the error for a file that contains objects other than tensors."""
    if is_blocked:
        return CheckpointError(
            f"{display_name(source)} calls {class_name!r}, which no model needs: it may be an attack. "
            "Nothing was loaded or executed. Do not load it elsewhere either."
        )
    if _is_outermost(source, class_name):
        what = f"a whole object of {class_name}, not a dict of tensors"
        convert = _conversion(source, "torch.load({}, weights_only=False).state_dict()")
    else:
        what = f"an object of {class_name} in addition to its tensors"
        convert = (
            _conversion(source, "torch.load({}, weights_only=False)['model']") + " (or their actual key)"
        )
    return CheckpointError(
        f"{display_name(source)} contains {what}. It is not loaded, because restoring anything but tensors "
        f"executes code that the file names. If you trust it, save only its tensors: {convert}"
    )


def _is_outermost(source: File, class_name: str) -> bool:
    """Return whether the outermost value is of that class, by inspecting the first opcodes."""
    try:
        with zipfile.ZipFile(source) as archive:
            pickled = next(member for member in archive.namelist() if member.endswith("data.pkl"))
            with archive.open(pickled) as file:
                opcodes = pickletools.genops(file.read(_FIRST_BYTES))
        first = next(argument for opcode, argument, _ in opcodes if opcode.name != "PROTO")
    except Exception:  # a damaged file can raise any error
        return False
    return str(first).replace(" ", ".") == class_name


def _conversion(source: File, expression: str) -> str:
    """Return the line of Python that converts the file; `{}` in the expression stands for its name."""
    name = "'model.pt'" if isinstance(source, io.BytesIO) else display_name(source)
    return f"torch.save({expression.format(name)}, 'weights.pt')"


def _flatten(table: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Tensor]]:
    for key, value in table.items():
        if isinstance(value, Tensor):
            yield f"{prefix}{key}", value.detach()
        elif isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
