"""Files of `torch.save`, read without running anything that is in them."""

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

from .byte_reader import named

ZIP_MAGIC = b"PK"
LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9c"

File = str | os.PathLike[str] | io.BytesIO

_REFUSED = re.compile(r"GLOBAL (\S+) (was not an allowed|whose module)")
_FIRST_BYTES = 1024


def read(source: File) -> dict[str, Tensor]:
    """Give every tensor in the file; tables inside tables become dotted names, other values are left out."""
    mapped = not isinstance(source, io.BytesIO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about protocols, which the user cannot change
            content = torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        found = _REFUSED.search(str(error))
        if found is not None:
            raise _refusal(source, found[1], is_blocked=found[2] == "whose module") from error
        if "TorchScript" in str(error):
            raise CheckpointError(
                f"{named(source)} holds a TorchScript program, not a table of tensors. Programs are not "
                f"loaded. Save its weights alone: {_line(source, 'torch.jit.load({}).state_dict()')}"
            ) from error
        # A changed file makes the reader raise anything at all; its advice to switch safety off is left out.
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ValueError(f"torch cannot read it safely ({reason})") from error
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{named(source)} holds a {type(content).__name__}, not a table of tensors. "
            "Save one, such as torch.save(model.state_dict(), 'weights.pt')"
        )
    return dict(_flattened(content, ""))


def old_form(source: File) -> CheckpointError:
    """Word the error for a file of an earlier form, where memory is taken because the file asks for it."""
    return CheckpointError(
        f"{named(source)} has the form of torch before 1.6, which is not read. Save it anew: "
        f"{_line(source, 'torch.load({}, weights_only=True)')}"
    )


def _refusal(source: File, name: str, *, is_blocked: bool) -> CheckpointError:
    """Say what the file holds beside tensors, why it is not loaded, and how to convert it."""
    if is_blocked:
        return CheckpointError(
            f"{named(source)} calls for {name!r}, which no model needs: it may be an attack. "
            "Nothing was loaded or run. Do not load it elsewhere either."
        )
    if _begins_with(source, name):
        what = f"one whole object of {name}, not a table of tensors"
        convert = _line(source, "torch.load({}, weights_only=False).state_dict()")
    else:
        what = f"an object of {name} beside its tensors"
        convert = _line(source, "torch.load({}, weights_only=False)['model']") + " (or whatever their key is)"
    return CheckpointError(
        f"{named(source)} holds {what}. It is not loaded, for to put anything but tensors together is to run "
        f"code that the file names. If you trust it, save its tensors alone: {convert}"
    )


def _begins_with(source: File, name: str) -> bool:
    """Say whether the outermost value is of that class; the first words are looked at, and not obeyed."""
    try:
        with zipfile.ZipFile(source) as archive:
            pickled = next(member for member in archive.namelist() if member.endswith("data.pkl"))
            with archive.open(pickled) as file:
                words = pickletools.genops(file.read(_FIRST_BYTES))
        first = next(argument for word, argument, _ in words if word.name != "PROTO")
    except Exception:  # of a changed file, anything
        return False
    return str(first).replace(" ", ".") == name


def _line(source: File, expression: str) -> str:
    """Give the line that saves what an expression with the name of the file comes to."""
    name = "'model.pt'" if isinstance(source, io.BytesIO) else named(source)
    return f"torch.save({expression.format(name)}, 'weights.pt')"


def _flattened(table: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Tensor]]:
    for key, value in table.items():
        if isinstance(value, Tensor):
            yield f"{prefix}{key}", value.detach()
        elif isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
