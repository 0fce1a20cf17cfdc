"""The schema of an entry: from the cache, from the program itself, or from the manifest."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flodl.cli.args.schema import Schema, from_json
from flodl.core.errors import ArgsError, ManifestError
from flodl.core.files import write_atomic

from . import docker
from .children import environment_for_children
from .document import Table, plain
from .finding import NAMES, manifest_in
from .layers import Manifest

CACHE = Path(".fdl", "schema-cache")
PROBE_LIMIT_S = 10.0
_SKIPPED = {
    ".git",
    "target",
    "node_modules",
    "libtorch",
    "runs",
    ".cargo",
    "site",
    "docs",
    ".claude",
    ".venv",
}
_SIGNS = ("fdl-schema", "flodl.cli")  # a program that knows the flag has one of them in its text
Status = Literal["fresh", "stale", "orphan"]


@dataclass(frozen=True)
class Cached:
    """A file of the cache."""

    file: Path

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def folder(self) -> Path:
        """The folder of the command."""
        return self.file.parents[2]

    @property
    def status(self) -> Status:
        if manifest_in(self.folder) is None:
            return "orphan"
        return "fresh" if is_fresh(self.file, self.folder) else "stale"


def schema_of(manifest: Manifest, *, probing: bool = True, limit_s: float | None = None) -> Schema | None:
    """Give the schema of a manifest's entry, or nothing where none can be had.

    A fresh cache comes first, then the program, then the `schema:` of the manifest. A program is asked only
    if its text shows that it knows `--fdl-schema`, or with `compile: true`: any other might start its work.
    """
    file = cache_file(manifest)
    entry = manifest.document.value("entry")
    if is_fresh(file, manifest.folder) and (found := read_cache(file)):
        return found
    if probing and isinstance(entry, str) and may_be_asked(manifest, entry):
        try:
            return refresh(manifest, file, limit_s=limit_s)
        except (ManifestError, ArgsError):
            pass  # help and completion go on without; `--refresh-schema` says what is wrong
    return inline_schema(manifest) or read_cache(file)


def inline_schema(manifest: Manifest) -> Schema | None:
    """Read the `schema:` of a manifest."""
    node = manifest.document.get("schema")
    if not isinstance(node, Table):
        return None
    try:
        return from_json(plain(node))
    except ArgsError as error:
        raise ManifestError(f"{node.origin}: schema: {error}") from None


def cache_file(manifest: Manifest) -> Path:
    """Give the file that keeps the schema of a manifest's entry, there or not."""
    return manifest.folder / CACHE / f"{manifest.folder.resolve().name}.json"


def read_cache(file: Path) -> Schema | None:
    """Read a cached schema; one that cannot be used is as good as none."""
    try:
        return from_json(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, ArgsError):
        return None


def is_fresh(file: Path, folder: Path) -> bool:
    """Say whether a cache is newer than the manifests of its folder and the source of their entry."""
    try:
        written = file.stat().st_mtime_ns
    except OSError:
        return False
    sources = [folder / name for name in NAMES] + sorted(folder.glob("fdl.*.*")) + sorted(folder.glob("*.py"))
    return all(path.stat().st_mtime_ns <= written for path in sources if path.is_file())


def may_be_asked(manifest: Manifest, entry: str) -> bool:
    """Say whether a program can be started with `--fdl-schema` without the risk that it does its work."""
    if manifest.document.value("compile") is True:
        return True
    for file in source_files(manifest.folder, entry):
        try:
            with file.open("rb") as stream:
                text = stream.read(200_000)
        except OSError:
            continue
        if any(sign.encode() in text for sign in _SIGNS):
            return True
    return False


def source_files(folder: Path, entry: str) -> Iterator[Path]:
    """Give the files that the words of an entry name: `tool.sh`, `train.py`, `-m package.module`."""
    words = entry.split()
    for before, word in zip(["", *words], words):
        if before == "-m":
            inner = folder.joinpath(*word.split("."))
            candidates = [inner.with_suffix(".py"), inner / "__main__.py"]
        else:
            candidates = [folder / word]
        yield from (path for path in candidates if path.is_file())


def refresh(manifest: Manifest, file: Path, *, limit_s: float | None = None) -> Schema:
    """Ask the entry for its schema and keep the answer."""
    data = probe(manifest, limit_s=limit_s or PROBE_LIMIT_S)
    schema = from_json(data)
    try:
        write_atomic(file, json.dumps(data, indent=2) + "\n")
    except OSError as error:
        from flodl.core import log

        log.verbose("the schema is not kept: %s", error)
    return schema


def probe(manifest: Manifest, *, limit_s: float) -> Any:
    """Run the entry with `--fdl-schema` and give the object that it prints."""
    entry = manifest.document.value("entry")
    if not isinstance(entry, str) or not entry.strip():
        raise ManifestError(f"{manifest.path} has no `entry:` that could be asked for its schema.")
    service = manifest.document.value("docker")
    command, folder = ["sh", "-c", f"{entry} --fdl-schema"], manifest.folder
    if isinstance(service, str) and not docker.inside_container():
        folder = docker.project_with_compose(manifest.folder)
        command = docker.wrap_entry(service, folder, manifest.folder, [*shlex.split(entry), "--fdl-schema"])
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=limit_s,
            stdin=subprocess.DEVNULL, errors="replace", env=environment_for_children(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ManifestError(
            f"`{entry} --fdl-schema` gave no answer within {limit_s:g} s. "
            "Let it parse its arguments before it imports torch, or write a `schema:` into the manifest."
        ) from None
    except OSError as error:
        raise ManifestError(f"`{command[0]}` cannot be started: {error.strerror}.") from None
    if done.returncode:
        raise ManifestError(
            f"`{entry} --fdl-schema` ended with code {done.returncode}: {done.stderr.strip()[-400:]}"
        )
    try:
        return json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{") :])[0]
    except ValueError:
        raise ManifestError(f"`{entry} --fdl-schema` printed no JSON object.") from None


def cached_schemas(root: Path) -> list[Cached]:
    """Give every cached schema below a folder, sorted by path."""
    import os

    found = []
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in _SKIPPED]
        if Path(folder).parts[-2:] == CACHE.parts:
            found += [Cached(Path(folder, file)) for file in files if file.endswith(".json")]
    return sorted(found, key=lambda one: one.file)


def clear(one: Cached) -> None:
    """Delete a cached schema, and the folders that it leaves empty."""
    one.file.unlink(missing_ok=True)
    for folder in one.file.parents[:2]:
        if not any(folder.iterdir()):
            folder.rmdir()
