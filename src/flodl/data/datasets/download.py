"""Download a file over HTTP: resume interrupted downloads, verify the content, rename at the end."""

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
_NETWORK_ERRORS = (OSError, http.client.HTTPException)  # urllib's errors, resets and timeouts are OSErrors
_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)

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
    """Download a file from the first URL that has it.

    The bytes are written to `NAME.part` next to the target, which a later call resumes; only a file of the
    right size and hash is renamed. Processes that download the same file wait for each other.
    """
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(part):
            if not target.is_file():
                _fetch(urls, part, num_bytes, progress or _ProgressLines(target.name), attempts, pause_s)
                _check_md5(part, md5, urls)
                os.replace(part, target)
    except OSError as error:  # a disk error: network errors are handled in _fetch
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
        except _NETWORK_ERRORS as error:
            if isinstance(error, OSError) and error.errno in _DISK_ERRNOS:
                raise
            failures.append(f"{url}: {_describe(error)}")
        else:
            received = _size(part)
            if received == num_bytes:
                return
            failures.append(f"{url}: received {received} of {num_bytes} bytes")
            if received > num_bytes:
                part.unlink()
        if attempt + 1 < attempts:
            time.sleep(pause_s * attempt)
    kept = (
        f" {format_bytes(_size(part))} are kept in {part}; a later call resumes there." if _size(part) else ""
    )
    raise DownloadError(
        f"{part.with_suffix('').name} could not be downloaded after {attempts} attempts. The last error: "
        f"{failures[-1]}.{kept} Check the network, or put the file at {part.with_suffix('')} yourself."
    )


def _transfer(url: str, part: Path, num_bytes: int, progress: Progress) -> None:
    """Append the missing bytes; start over if the server does not support ranges."""
    received = _size(part)
    if received == num_bytes:
        return
    headers = {"User-Agent": "flodl", "Accept-Encoding": "identity"}
    if received:
        headers["Range"] = f"bytes={received}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # out of range: the partial file is not a part of this file
            part.unlink()
        error.close()
        raise
    with response:
        content_range = response.headers.get("Content-Range", "")
        resumes = response.status == 206 and content_range.startswith(f"bytes {received}-")
        if not resumes:
            received = 0
        with open(part, "ab" if resumes else "wb") as file:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                received += len(chunk)
                progress(received, num_bytes)
            file.flush()
            os.fsync(file.fileno())


def _check_md5(part: Path, md5: str, urls: Sequence[str]) -> None:
    with open(part, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        part.unlink()
        raise DownloadError(
            f"the download from {urls[0]} is not the published file: MD5 {found}, expected {md5}. "
            "It was deleted. Try again, or use a different mirror=."
        )


@contextlib.contextmanager
def _locked(part: Path) -> Iterator[None]:
    """Let one process at a time write the file, if the system supports locks."""
    path = part.with_name(part.name + ".lock")
    with lock.exclusive(path):
        yield
        # Not after a failure: a process that waits for this lock file must still lock out later ones.
        path.unlink(missing_ok=True)


class _ProgressLines:
    """Logs the progress of a download every tenth of it, at most once a second."""

    def __init__(self, name: str) -> None:
        self._name, self._tenth, self._logged_s = name, 0, 0.0

    def __call__(self, received: int, total: int) -> None:
        tenth = 10 * received // max(total, 1)
        now = time.monotonic()
        if tenth > self._tenth and (now - self._logged_s > 1 or received == total):
            self._tenth, self._logged_s = tenth, now
            log.msg("%s: %s of %s", self._name, format_bytes(received), format_bytes(total))


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _describe(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
