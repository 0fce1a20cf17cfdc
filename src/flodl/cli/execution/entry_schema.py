"""The schema of an entry: from the cache, from the program itself, or from the manifest."""

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
from flodl.cli.manifest.discovery import manifest_in
from flodl.cli.manifest.document import Table, plain
from flodl.cli.manifest.loader import Manifest, load
from flodl.core import log
from flodl.core.errors import ArgsError, FlodlError, ManifestError
from flodl.core.files import write_atomic

from . import docker
from .entry_files import fingerprint, knows_the_flag
from .process import environment_for_children

CACHE = Path(".fdl", "schema-cache")
PROBE_LIMIT_S = 10.0
_SKIPPED = {"target", "node_modules", "libtorch", "runs", "site", "docs"}  # and all that are hidden
FAILURE = ".failure"  # beside a kept schema: that there was no answer
Status = Literal["fresh", "stale", "orphan"]


@dataclass(frozen=True)
class CachedSchema:
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
        try:
            path = manifest_in(self.folder)
            if path is None:
                return "orphan"
            mark = fingerprint(load(path, project=self.folder))
        except FlodlError:
            return "stale"
        return "fresh" if read_cache(self.file, mark) else "stale"


def load_schema(manifest: Manifest, *, limit_s: float | None = None) -> Schema | None:
    """Give the schema of a manifest's entry, or nothing where none can be had.

    What is kept comes first, if nothing behind the entry has changed; then the program, then the `schema:`
    of the manifest. A program is asked only if its text shows that it knows `--fdl-schema`, or with
    `compile: true`: any other might start its work. One that failed to answer is asked again when its text
    has changed, or when there is more time for it.
    """
    file, mark = cache_file(manifest), fingerprint(manifest)
    if found := read_cache(file, mark):
        return found
    if may_be_asked(manifest) and not _failed_before(file, mark, limit_s or PROBE_LIMIT_S):
        try:
            return refresh_schema(manifest, file, limit_s=limit_s).schema
        except (ManifestError, ArgsError) as error:
            # Help and completion go on without; `--refresh-schema` says what is wrong.
            _tell("the entry of %s is not known: %s", manifest.path, error)
    return inline_schema(manifest)


def _tell(words: str, *values: object) -> None:
    """Say something to those who asked for more; standard output may be for a program to read."""
    if log.enabled(log.Verbosity.VERBOSE):
        click.echo("fdl: " + words % values, err=True)


def asked_again(manifest: Manifest, old: Schema) -> Schema | None:
    """Ask an entry once more whose schema refuses something; give it if it is another one by now.

    Not everything that a program takes shows in the files that it names.
    """
    if not may_be_asked(manifest):
        return None
    try:
        new = refresh_schema(manifest, cache_file(manifest)).schema
    except (ManifestError, ArgsError):
        return None
    return new if new != old else None


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


def read_cache(file: Path, mark: str = "") -> Schema | None:
    """Read a schema that was kept under this fingerprint; one that cannot be used is as good as none."""
    kept = _read(file)
    if mark and kept.get("fingerprint") != mark:
        return None
    try:
        return from_json(kept.get("schema"))
    except ArgsError:
        return None


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _failed_before(file: Path, mark: str, limit_s: float) -> bool:
    kept = _read(file.with_suffix(FAILURE))
    if kept.get("fingerprint") != mark or limit_s > kept.get("limit_s", 0.0):
        return False
    _tell("not asked again: %s", kept.get("why"))
    return True


def may_be_asked(manifest: Manifest) -> bool:
    """Say whether a program can be started with `--fdl-schema` without the risk that it does its work."""
    entry = manifest.document.value("entry")
    if not isinstance(entry, str) or not entry.strip():
        return False
    return manifest.document.value("compile") is True or knows_the_flag(manifest.folder, entry)


@dataclass(frozen=True)
class Answer:
    """What an entry said, and whether that could be kept."""

    schema: Schema
    kept: bool


def refresh_schema(manifest: Manifest, file: Path, *, limit_s: float | None = None) -> Answer:
    """Ask the entry for its schema and keep the answer, or that there was none."""
    limit_s, mark = limit_s or PROBE_LIMIT_S, fingerprint(manifest)
    failure = file.with_suffix(FAILURE)
    try:
        data = probe(manifest, limit_s=limit_s)
        schema = from_json(data)
    except (ManifestError, ArgsError) as error:
        _keep(failure, {"fingerprint": mark, "limit_s": limit_s, "why": str(error)})
        raise
    kept = _keep(file, {"fingerprint": mark, "schema": data})
    with contextlib.suppress(OSError):
        failure.unlink(missing_ok=True)
    return Answer(schema, kept)


def _keep(file: Path, content: dict[str, Any]) -> bool:
    try:
        write_atomic(file, json.dumps(content, indent=2) + "\n")
    except OSError as error:
        _tell("%s is not kept: %s", file, error)
        return False
    return True


def probe(manifest: Manifest, *, limit_s: float) -> Any:
    """Run the entry with `--fdl-schema` and give the object that it prints."""
    entry = manifest.document.value("entry")
    if not isinstance(entry, str) or not entry.strip():
        raise ManifestError(f"{manifest.path} has no `entry:` that could be asked for its schema.")
    service = manifest.document.value("docker")
    command, folder = ["sh", "-c", f"{entry} --fdl-schema"], manifest.folder
    if isinstance(service, str) and not container.inside_container():
        folder = docker.project_with_compose(manifest.folder.resolve())
        command = docker.wrap_entry(
            service, folder, manifest.folder.resolve(), [*shlex.split(entry), "--fdl-schema"]
        )
    _tell("asking %s --fdl-schema", entry)
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


def cached_schemas(root: Path) -> list[CachedSchema]:
    """Give every cached schema below a folder, sorted by path."""
    import os

    found = []
    for folder, names, files in os.walk(root):
        names[:] = [
            name for name in names if name == CACHE.parts[0] or (name[0] != "." and name not in _SKIPPED)
        ]
        if Path(folder).parts[-2:] == CACHE.parts:
            found += [CachedSchema(Path(folder, file)) for file in files if file.endswith(".json")]
    return sorted(found, key=lambda one: one.file)


def delete_schema(one: CachedSchema) -> None:
    """Delete a cached schema, and the folders that it leaves empty."""
    for file in (one.file, one.file.with_suffix(FAILURE)):
        file.unlink(missing_ok=True)
    for folder in one.file.parents[:2]:
        if not any(folder.iterdir()):
            folder.rmdir()
