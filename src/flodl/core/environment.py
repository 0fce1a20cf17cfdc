"""Every environment variable that flodl reads, in one place.

| variable          | meaning                                                                 |
| ----------------- | ----------------------------------------------------------------------- |
| `FLODL_VERBOSITY` | 0–4 or quiet, normal, verbose, debug, trace: how much flodl prints       |
| `NO_COLOR`        | not empty: no colour in the terminal                                     |
"""

from __future__ import annotations

import os


def verbosity_text() -> str | None:
    """Give the raw text of `FLODL_VERBOSITY`, or nothing when it is not set."""
    return os.environ.get("FLODL_VERBOSITY")


def colour_refused() -> bool:
    """Say whether `NO_COLOR` asks for plain text."""
    return bool(os.environ.get("NO_COLOR"))
