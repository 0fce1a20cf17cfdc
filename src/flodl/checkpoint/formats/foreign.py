"""Files that are not checkpoints, recognized by their first bytes."""

from __future__ import annotations

_KINDS = {
    b"version ": "is a Git LFS pointer, not the file itself: run `git lfs pull` first",
    b"<!DOCTYP": "is a web page, not a checkpoint: the download failed",
    b"<!doctyp": "is a web page, not a checkpoint: the download failed",
    b"<html": "is a web page, not a checkpoint: the download failed",
    b"\x93NUMPY": "is a NumPy array, not a checkpoint",
    b"\x89HDF": "is an HDF5 file, not a checkpoint",
    b"GGUF": "is a GGUF file, which flodl does not read",
}


def describe_foreign(first_bytes: bytes, *, is_stream: bool = False) -> str:
    """Describe a file that cannot be a checkpoint by its first eight bytes; return '' if it may be one.

    >>> describe_foreign(b"hello wo"), describe_foreign(b"\\x40" + bytes(7))
    ("is text that starts with 'hello wo', not a checkpoint", '')
    """
    if not first_bytes:
        return "is empty, or at its end: call seek(0) first" if is_stream else "is empty (0 bytes)"
    for start, description in _KINDS.items():
        if first_bytes.startswith(start):
            return description
    # The header of a safetensors file has less than 4 GB, so its length ends with four zero bytes.
    text = first_bytes.decode("ascii", "replace")
    if len(first_bytes) == 8 and all(
        character.isprintable() or character in "\t\r\n" for character in text.replace("\ufffd", "\0")
    ):
        return f"is text that starts with {text!r}, not a checkpoint"
    return ""
