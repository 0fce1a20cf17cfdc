"""Parse and compare the versions of releases."""

from __future__ import annotations

import re
from collections.abc import Iterable

PACKAGE = "flodl"

_RELEASE = re.compile(r"\d{1,9}(?:\.\d{1,9})*\Z", re.ASCII)
_NUMBERS = re.compile(r"(?:\d{1,9}!)?v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?", re.ASCII)
_AVAILABLE = re.compile(r"^available versions:(.*)$", re.IGNORECASE | re.MULTILINE)


def is_release(version: object) -> bool:
    """Return whether this is the version of a release: numbers and dots, no pre-release suffix.

    >>> [is_release(version) for version in ("0.2.0", "0.2.0rc1", "0.2.0.dev3", "newest")]
    [True, False, False, False]
    """
    return isinstance(version, str) and _RELEASE.match(version) is not None


def numbers(version: str) -> tuple[int, int, int]:
    """Return major, minor and patch; the rest is ignored.

    >>> numbers("1.2"), numbers("0.2.0.dev3"), numbers("unknown")
    ((1, 2, 0), (0, 2, 0), (0, 0, 0))
    """
    found = _NUMBERS.match(version)
    major, minor, patch = found.groups() if found else (0, 0, 0)
    return int(major), int(minor or 0), int(patch or 0)


def is_newer(version: str, than: str) -> bool:
    """Return whether `version` is a release with a higher major, minor or patch number.

    >>> is_newer("0.10.0", than="0.9.1"), is_newer("0.2.0", than="0.2.0.dev3"), is_newer("0.1.0", than="?")
    (True, False, False)
    """
    return is_release(version) and _NUMBERS.match(than) is not None and numbers(version) > numbers(than)


def newest(versions: Iterable[str]) -> str | None:
    """Return the newest release among these versions, or None if none is a release."""
    releases = [version for version in versions if is_release(version)]
    return max(releases, key=numbers, default=None)


def parse_pip_versions(text: str) -> list[str]:
    """Return the versions that `pip index versions` printed.

    >>> parse_pip_versions("flodl (0.2.0)\\nAvailable versions: 0.2.0, 0.1.0\\n  INSTALLED: 0.1.0")
    ['0.2.0', '0.1.0']
    """
    found = _AVAILABLE.search(text)
    return [word.strip() for word in found[1].split(",")] if found else []
