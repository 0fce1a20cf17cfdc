"""The schema of an entry, from the cache, the program itself, or the manifest."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from flodl.cli import container
from flodl.cli.args.schema import Schema, from_json
from flodl.cli.capture import MAX_OUTPUT_BYTES, OutputTooLongError, capture
from flodl.cli.manifest.discovery import manifest_in
from flodl.cli.manifest.document import Table, plain
from flodl.cli.manifest.loader import Manifest, load
from flodl.core import log
from flodl.core.errors import ArgsError, FlodlError, ManifestError
from flodl.core.files import read_limited, write_atomic

from . import docker
from .entry_files import fingerprint, supports_schema
from .process import child_environment

CACHE_FOLDER = Path(".fdl", "schema-cache")
PROBE_TIMEOUT_S = 10.0
_SKIPPED_FOLDERS = {"target", "node_modules", "libtorch", "runs", "site", "docs"}  # and hidden ones
FAILURE_SUFFIX = ".failure"  # a file next to a cached schema that records a failed probe
Status = Literal["fresh", "stale", "orphan"]


@dataclass(frozen=True)
class CachedSchema:
    """A cached schema file."""

    file: Path

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def folder(self) -> Path:
        """The folder of the manifest whose entry it describes."""
        return self.file.parents[2]

    @property
    def status(self) -> Status:
        try:
            path = manifest_in(self.folder)
            if path is None:
                return "orphan"
            current = fingerprint(load(path, project=self.folder))
        except FlodlError:
            return "stale"
        return "fresh" if read_cache(self.file, current) else "stale"


def load_schema(manifest: Manifest, *, timeout_s: float | None = None) -> Schema | None:
    """Return the schema of a manifest's entry, or None.

    The cache is used if the source of the entry has not changed; then the program is asked, then the
    `schema:` of the manifest is used. A program is asked only if its source mentions `--fdl-schema`, or with
    `compile: true`, because any other program might start working. After a failure it is asked again only if
    its source has changed or the timeout is longer.
    """
    file, current = cache_file(manifest), fingerprint(manifest)
    if schema := read_cache(file, current):
        return schema
    if can_be_asked(manifest) and not _failed_before(file, current, timeout_s or PROBE_TIMEOUT_S):
        try:
            return refresh_schema(manifest, file, timeout_s=timeout_s).schema
        except (ManifestError, ArgsError) as error:
            # Help and completion work without a schema. `--refresh-schema` shows the error.
            _log("no schema for the entry of %s: %s", manifest.path, error)
    return inline_schema(manifest)


def _log(message: str, *values: object) -> None:
    """Print a message with `-v`, on standard error, because a program may read standard output."""
    if log.enabled(log.Verbosity.VERBOSE):
        click.echo("fdl: " + message % values, err=True)


def changed_schema(manifest: Manifest, old: Schema) -> Schema | None:
    """Ask an entry for its schema again and return it if it differs from the old one.

    Not everything that affects a schema is in the fingerprinted files.
    """
    if not can_be_asked(manifest):
        return None
    try:
        new = refresh_schema(manifest, cache_file(manifest)).schema
    except (ManifestError, ArgsError):
        return None
    return new if new != old else None


def inline_schema(manifest: Manifest) -> Schema | None:
    """Return the `schema:` of a manifest, or None."""
    node = manifest.document.get("schema")
    if not isinstance(node, Table):
        return None
    try:
        return from_json(plain(node))
    except ArgsError as error:
        raise ManifestError(f"{node.origin}: schema: {error}") from None


def cache_file(manifest: Manifest) -> Path:
    """Return the cache file for the schema of a manifest's entry. It need not exist."""
    return manifest.folder / CACHE_FOLDER / f"{manifest.folder.resolve().name}.json"


def read_cache(file: Path, current: str = "") -> Schema | None:
    """Return a cached schema if it is valid and has the current fingerprint, else None."""
    content = _read_json(file)
    if current and content.get("fingerprint") != current:
        return None
    try:
        return from_json(content.get("schema"))
    except ArgsError:
        return None


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_limited(file, max_bytes=MAX_OUTPUT_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _failed_before(file: Path, current: str, timeout_s: float) -> bool:
    failure = _read_json(file.with_suffix(FAILURE_SUFFIX))
    if failure.get("fingerprint") != current or timeout_s > failure.get("limit_s", 0.0):
        return False
    _log("the entry is not asked again: %s", failure.get("why"))
    return True


def can_be_asked(manifest: Manifest) -> bool:
    """Return whether it is safe to start the program with `--fdl-schema`."""
    entry = manifest.document.value("entry")
    if not isinstance(entry, str) or not entry.strip():
        return False
    return manifest.document.value("compile") is True or supports_schema(manifest.folder, entry)


@dataclass(frozen=True)
class Answer:
    """The schema that an entry returned, and whether it could be cached."""

    schema: Schema
    cached: bool


def refresh_schema(manifest: Manifest, file: Path, *, timeout_s: float | None = None) -> Answer:
    """Ask the entry for its schema and cache the answer or the failure."""
    timeout_s, current = timeout_s or PROBE_TIMEOUT_S, fingerprint(manifest)
    failure = file.with_suffix(FAILURE_SUFFIX)
    try:
        data = probe(manifest, timeout_s=timeout_s)
        schema = from_json(data)
    except (ManifestError, ArgsError) as error:
        _write_json(failure, {"fingerprint": current, "limit_s": timeout_s, "why": str(error)})
        raise
    cached = _write_json(file, {"fingerprint": current, "schema": data})
    with contextlib.suppress(OSError):
        failure.unlink(missing_ok=True)
    return Answer(schema, cached)


def _write_json(file: Path, content: dict[str, Any]) -> bool:
    if file.exists() and not file.is_file():
        _log("%s cannot be written: it is not a regular file", file)
        return False
    try:
        write_atomic(file, json.dumps(content, indent=2) + "\n")
    except OSError as error:
        _log("%s cannot be written: %s", file, error)
        return False
    return True


def probe(manifest: Manifest, *, timeout_s: float) -> Any:
    """Run the entry with `--fdl-schema` and return the JSON object that it prints.

    A container is asked first. If it cannot be, for example because its image has not been built yet, a
    Python script is asked on this machine.
    """
    entry = manifest.document.value("entry")
    if not isinstance(entry, str) or not entry.strip():
        raise ManifestError(f"{manifest.path} has no `entry:` to ask for a schema.")
    here = ["sh", "-c", f"{entry} --fdl-schema"]
    service = manifest.document.value("docker")
    if not isinstance(service, str) or container.inside_container():
        return _ask(entry, here, manifest.folder, timeout_s=timeout_s)
    try:
        folder = docker.project_with_compose(manifest.folder.resolve())
        words = [*shlex.split(entry), "--fdl-schema"]
        command = docker.wrap_entry(service, folder, manifest.folder.resolve(), words)
        return _ask(entry, command, folder, timeout_s=timeout_s)
    except ManifestError as error:
        if not supports_schema(manifest.folder, entry):
            raise
        _log("the container cannot be asked: %s", error)
        with contextlib.suppress(ManifestError):
            return _ask(entry, here, manifest.folder, timeout_s=timeout_s)
        raise


def _ask(entry: str, command: list[str], folder: Path, *, timeout_s: float) -> Any:
    _log("asking %s --fdl-schema", entry)
    try:
        done = capture(command, cwd=folder, timeout_s=timeout_s, env=child_environment())
    except OutputTooLongError:
        raise ManifestError(
            f"`{entry} --fdl-schema` printed more than {MAX_OUTPUT_BYTES} bytes. It should print its schema."
        ) from None
    except subprocess.TimeoutExpired:
        raise ManifestError(
            f"`{entry} --fdl-schema` did not answer within {timeout_s:g} s. "
            "Parse the arguments before importing torch, or add a `schema:` to the manifest."
        ) from None
    except OSError as error:
        raise ManifestError(f"`{command[0]}` cannot be started: {error.strerror}.") from None
    if done.code:
        raise ManifestError(
            f"`{entry} --fdl-schema` exited with code {done.code}: {done.stderr.strip()[-400:]}"
        )
    try:
        return json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{") :])[0]
    except (ValueError, RecursionError):
        raise ManifestError(f"`{entry} --fdl-schema` did not print a JSON object.") from None


def cached_schemas(root: Path) -> list[CachedSchema]:
    """Return every cached schema below a folder, sorted by path."""
    import os

    found = []
    for folder, names, files in os.walk(root):
        names[:] = [
            name
            for name in names
            if name == CACHE_FOLDER.parts[0] or (name[0] != "." and name not in _SKIPPED_FOLDERS)
        ]
        if Path(folder).parts[-2:] == CACHE_FOLDER.parts:
            found += [CachedSchema(Path(folder, file)) for file in files if file.endswith(".json")]
    return sorted(found, key=lambda cached: cached.file)


def delete_schema(cached: CachedSchema) -> None:
    """Delete a cached schema and the folders that become empty."""
    for file in (cached.file, cached.file.with_suffix(FAILURE_SUFFIX)):
        file.unlink(missing_ok=True)
    for folder in cached.file.parents[:2]:
        if not any(folder.iterdir()):
            folder.rmdir()
