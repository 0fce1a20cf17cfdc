"""Download archives of libtorch and unpack them atomically."""

from __future__ import annotations

import http.client
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from flodl.core.errors import SetupError
from flodl.core.files import write_atomic
from flodl.core.formats import format_bytes

from .builds import TORCH, Build
from .hardware import Hardware
from .store import cannot_write

ARCHIVES = "https://download.pytorch.org/libtorch"
_NAMES = {
    ("linux", "x86_64"): "libtorch-shared-with-deps-{version}%2B{build}.zip",
    ("windows", "x86_64"): "libtorch-win-shared-with-deps-{version}%2B{build}.zip",
    ("darwin", "arm64"): "libtorch-macos-arm64-{version}.zip",
}
_CHUNK_BYTES = 1 << 20

Echo = Callable[[str], None]


def archive_url(build: Build, hardware: Hardware, version: str = TORCH) -> str:
    """Return the URL of an archive.

    >>> from .builds import find_build
    >>> archive_url(find_build("cu130"), Hardware("linux", "x86_64"))
    'https://download.pytorch.org/libtorch/cu130/libtorch-shared-with-deps-2.13.0%2Bcu130.zip'
    """
    name = _NAMES.get((hardware.system, hardware.machine))
    if name is None or (hardware.system == "darwin" and build.name != "cpu"):
        raise SetupError(
            f"there is no archive of libtorch {version} ({build.name}) for {hardware.system} on "
            f"{hardware.machine}. Use the libtorch in the torch wheel: fdl setup, then fdl libtorch info"
        )
    return f"{ARCHIVES}/{build.name}/{name.format(version=version, build=build.name)}"


def fetch(url: str, target: Path, echo: Echo) -> None:
    """Download an archive, unpack it next to `target`, check it, and only then move it to `target`."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise cannot_write(error) from None
    try:
        archive = work / "libtorch.zip"
        _download(url, archive, echo)
        unpacked = _unpack(archive, work, url)
        _swap(unpacked, target)
    except OSError as error:
        raise SetupError(f"{url}: {error.strerror or error}. {target} was not changed.") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write_notes(target: Path, build: Build, version: str, url: str) -> None:
    """Write a file with facts about an unpacked archive into its folder."""
    notes = {
        "cuda": build.cuda or "none",
        "torch": version,
        "archs": " ".join(build.capabilities) or "cpu",
        "source": url,
        "variant": build.name,
    }
    write_atomic(target / ".arch", "".join(f"{name}={value}\n" for name, value in notes.items()))


def _download(url: str, target: Path, echo: Echo) -> None:
    echo(f"Downloading {url}")
    try:
        with urllib.request.urlopen(url, timeout=60) as response, target.open("wb") as file:
            total = int(response.headers.get("Content-Length") or 0)
            done, shown = 0, 0
            while chunk := response.read(_CHUNK_BYTES):
                file.write(chunk)
                done += len(chunk)
                if total and done * 10 // total > shown:
                    shown = done * 10 // total
                    echo(f"    {shown * 10} % of {format_bytes(total)}")
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise SetupError(
            f"{url} cannot be downloaded: {reason}. Check the network, or download it elsewhere and "
            "pass the file with --url."
        ) from None
    if total and done != total:
        raise SetupError(f"{url} ended after {done} of {total} bytes. Try again.")


def _unpack(archive: Path, work: Path, url: str) -> Path:
    try:
        with zipfile.ZipFile(archive) as content:
            content.extractall(work / "content")  # verifies the checksum of every file
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SetupError(f"{url} is not a complete zip archive ({error}). Try again.") from None
    archive.unlink()
    libraries = ("libtorch.so", "libtorch.dylib", "torch.lib", "libtorch.a")
    for lib in sorted((work / "content").glob("*/lib")):
        if any((lib / name).is_file() for name in libraries):
            return lib.parent
    raise SetupError(f"{url} contains no libtorch: expected a folder with lib/libtorch.so.")


def _swap(unpacked: Path, target: Path) -> None:
    """Replace the old folder with the new one; restore the old one if that fails."""
    backup = unpacked.parent.parent / "backup"
    if target.exists():
        target.rename(backup)
    try:
        unpacked.rename(target)
    except OSError:
        if backup.exists():
            backup.rename(target)
        raise
