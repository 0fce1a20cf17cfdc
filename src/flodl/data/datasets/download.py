"""Getting a file over HTTP: resumed where it broke off, checked, then put in its place in one move."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flodl.core import lock, log
from flodl.core.errors import DownloadError
from flodl.core.formats import format_bytes

_CHUNK = 1 << 16
_TIMEOUT_S = 30
_BROKEN = (OSError, http.client.HTTPException)  # urllib's errors, resets and timeouts are all OSErrors
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)

Progress = Callable[[int, int], None]


def download(
    urls: Sequence[str],
    target: Path,
    *,
    num_bytes: int,
    md5: str,
    progress: Progress | None = None,
    attempts: int = 4,
    pause_s: float = 1.0,
) -> Path:
    """Fetch a file from the first of the addresses that has it.

    The bytes go to `NAME.part` beside the target, which a later call takes up where it ended; only a file
    of the right size and hash gets the name. Processes that want the same file wait for each other.
    """
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(part):
            if not target.is_file():
                _fetch(urls, part, num_bytes, progress or _Lines(target.name), attempts, pause_s)
                _check(part, md5, urls)
                os.replace(part, target)
    except OSError as error:  # of the disk: those of the network were dealt with
        raise DownloadError(f"{error.filename or target} cannot be written: {error.strerror}.") from None
    return target


def _fetch(
    urls: Sequence[str], part: Path, num_bytes: int, progress: Progress, attempts: int, pause_s: float
) -> None:
    failures: list[str] = []
    for attempt in range(attempts):
        url = urls[attempt % len(urls)]
        try:
            _transfer(url, part, num_bytes, progress)
        except _BROKEN as error:
            if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
                raise
            failures.append(f"{url}: {_words(error)}")
        else:
            have = _size(part)
            if have == num_bytes:
                return
            failures.append(f"{url}: {have} of {num_bytes} bytes came")
            if have > num_bytes:
                part.unlink()
        if attempt + 1 < attempts:
            time.sleep(pause_s * attempt)
    kept = (
        f" {format_bytes(_size(part))} are kept in {part}; a later call goes on from there."
        if _size(part)
        else ""
    )
    raise DownloadError(
        f"{part.with_suffix('').name} could not be downloaded after {attempts} attempts; the last was "
        f"{failures[-1]}.{kept} Check the network, or put the file at {part.with_suffix('')} yourself."
    )


def _transfer(url: str, part: Path, num_bytes: int, progress: Progress) -> None:
    """Append what is missing; start over where the server does not go on from the middle."""
    have = _size(part)
    if have == num_bytes:
        return
    headers = {"User-Agent": "flodl", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # there is nothing from there on: what we have is not a part of this file
            part.unlink()
        error.close()
        raise
    with answer:
        goes_on = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(
            f"bytes {have}-"
        )
        if not goes_on:
            have = 0
        with open(part, "ab" if goes_on else "wb") as file:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                progress(have, num_bytes)
            file.flush()
            os.fsync(file.fileno())


def _check(part: Path, md5: str, urls: Sequence[str]) -> None:
    with open(part, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        part.unlink()
        raise DownloadError(
            f"what came from {urls[0]} is not the published file: MD5 {found}, expected {md5}. "
            "It was deleted. Try again, or another mirror=."
        )


@contextlib.contextmanager
def _locked(part: Path) -> Iterator[None]:
    """Let one process at a time write the file, where the system has such locks."""
    path = part.with_name(part.name + ".lock")
    with lock.exclusive(path):
        yield
        # Not after a failure: a process that waits for this lock must keep out those that come later.
        path.unlink(missing_ok=True)


class _Lines:
    """Tells about a download in plain lines, at every tenth of it and at most once a second."""

    def __init__(self, name: str) -> None:
        self._name, self._tenth, self._said_s = name, 0, 0.0

    def __call__(self, have: int, total: int) -> None:
        tenth = 10 * have // max(total, 1)
        now = time.monotonic()
        if tenth > self._tenth and (now - self._said_s > 1 or have == total):
            self._tenth, self._said_s = tenth, now
            log.msg("%s: %s of %s", self._name, format_bytes(have), format_bytes(total))


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _words(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
