"""The files of the skill, which `docs/write_skill.py` generates from the porting guide."""

from __future__ import annotations

import re
from pathlib import Path

NAME = "flodl-porting"
MAIN = "SKILL.md"
_FILES = Path(__file__).parent / "files"


def read_files() -> dict[str, bytes]:
    """Return the content of every file by its path in the skill, `SKILL.md` first.

    >>> list(read_files())[:2]
    ['SKILL.md', 'references/checkpoints.md']
    """
    paths = sorted(_FILES.rglob("*.md"), key=lambda path: (path.parent != _FILES, path))
    return {path.relative_to(_FILES).as_posix(): path.read_bytes() for path in paths}


def description() -> str:
    """Return what the skill is for, as an assistant reads it."""
    found = re.search(r"^description: (.+)$", read_files()[MAIN].decode(), flags=re.MULTILINE)
    assert found is not None
    return found[1]
