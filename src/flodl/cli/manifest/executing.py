"""Carrying out what a place names: a plan first, which can be shown, then the process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from flodl.cli import container
from flodl.cli.args.checking import check_tail
from flodl.cli.args.schema import Schema
from flodl.core import log
from flodl.core.environment import RESOLVED_CONFIG, flags_said
from flodl.core.errors import ManifestError, SetupError
from flodl.core.files import write_atomic

from . import docker, scripts
from .children import call
from .document import Table
from .holding import check_settings, check_variables
from .kinds import Kind
from .model import Command, Document, read_as
from .schemas import asked_again, schema_of
from .settings import Setting, covered, resolved, settings_of, without_denied, without_overruled
from .sources import has_words_of_its_own
from .startable import doubts_about_entry, doubts_about_script, refuse
from .walking import Place

LONGEST_VARIABLE = 100_000  # Linux refuses a process whose variable is longer than 128 KiB


@dataclass(frozen=True)
class Plan:
    """What will run, where, and with which values from where."""

    command: list[str]
    folder: Path
    table: Mapping[str, Mapping[str, Any]]
    echo: str = ""
    in_container: bool = field(default=False)
    notes: tuple[str, ...] = ()  # what those should know who ask what would run


def plan(place: Place, *, append: bool = True) -> Plan:
    """Work out what a place would start; whatever is wrong with it is an error now."""
    for manifest, name in place.passed:
        read_as(Document, manifest.document)
        spec = manifest.commands.entries[name]
        if isinstance(spec, Table):
            read_as(Command, spec, where=("commands", name))
    read_as(Document, place.manifest.document)
    return _plan_script(place, append=append) if place.kind is Kind.RUN else _plan_entry(place)


def _plan_script(place: Place, *, append: bool) -> Plan:
    where = ("commands", place.command)
    spec = read_as(Command, place.spec, where=where)
    words = scripts.user_words(place.title, place.tail)
    refuse(doubts_about_script(place.manifest, place.command, place.spec, with_append=append))
    line = scripts.compose(spec.run or "", (spec.append or "") if append else "", words)
    table = {
        key: _entry(place, place.spec, key) for key in ("run", "append", "docker") if place.spec.get(key)
    }
    if words:
        table["arguments"] = {"value": list(words), "origin": "command line"}
    folder = place.manifest.folder
    if spec.docker and not container.inside_container():
        inner = folder.resolve()
        mounted = docker.mounted_project(inner, place.manifest.project)
        command = docker.wrap_script(spec.docker, mounted, inner, line, variables=flags_said())
        return Plan(command, mounted, table, in_container=True)
    return Plan(["sh", "-c", line], folder, table, notes=_unused_docker(table))


def _plan_entry(place: Place) -> Plan:
    manifest = place.manifest
    document = manifest.document
    entry = document.value("entry")
    if not entry or not entry.strip():
        raise ManifestError(
            f"{manifest.path} has no `entry:`, so there is nothing to run in {manifest.folder}. "
            f"Add one, or name one of its commands: {', '.join(manifest.commands.entries) or 'none so far'}."
        )
    refuse(doubts_about_entry(manifest))
    preset = place.spec if place.kind is Kind.PRESET else None
    if preset is not None:
        read_as(Command, preset, where=("commands", place.command))
    schema = schema_of(manifest)
    settings = settings_of(document, preset, project=manifest.project)
    # The variables of this machine do not reach a container.
    on_host = not document.value("docker") or container.inside_container()
    settings, tail = without_denied(settings, place.tail, schema)
    place = replace(place, tail=tail)
    schema = _checked(place, schema, settings, on_host=on_host)
    table = {"entry": _entry(place, document, "entry")}
    if document.get("docker"):
        table["docker"] = _entry(place, document, "docker")
    table |= resolved(settings, place.tail, schema, with_environment=on_host)
    words = entry.split()
    for setting in without_overruled(settings, schema) if on_host else settings:
        words += setting.words(schema)
    notes = covered(manifest, place.command, preset) if preset is not None else []
    return _started(place, [*words, *place.tail], table, notes)


def _unused_docker(table: Mapping[str, Any]) -> tuple[str, ...]:
    if "docker" not in table:
        return ()
    return (f"{table['docker']['origin']}: docker is not used, because this is a container already.",)


def _started(place: Place, words: list[str], table: dict[str, Any], notes: list[str]) -> Plan:
    """Start the words here, or in the container that the manifest names."""
    manifest = place.manifest
    line = " ".join(map(scripts.quote, words))
    service = manifest.document.value("docker")
    if service and not container.inside_container():
        inner = manifest.folder.resolve()
        mounted = docker.mounted_project(inner, manifest.project)
        command = docker.wrap_entry(service, mounted, inner, words, variables=flags_said())
        echo = f"fdl: [{service}] {line}" if place.kind is Kind.PRESET else ""
        return Plan(command, mounted, table, echo, in_container=True, notes=tuple(notes))
    echo = f"fdl: {line}" if place.kind is Kind.PRESET else ""
    return Plan(words, manifest.folder, table, echo, notes=(*notes, *_unused_docker(table)))


def _checked(place: Place, schema: Schema | None, settings: list[Setting], *, on_host: bool) -> Schema | None:
    """Hold what is about to run to what the entry takes; before it refuses, the entry is asked once more."""
    if schema is None:
        return None

    entry = str(place.manifest.document.value("entry"))
    is_all = not has_words_of_its_own(place.manifest.folder, entry)

    def check(known: Schema) -> None:
        check_tail(known, place.tail, title=place.title, is_all=is_all)
        check_settings(known, settings)
        if on_host:
            check_variables(known, place.tail)

    try:
        check(schema)
    except (ManifestError, click.UsageError):
        newer = asked_again(place.manifest, schema)
        if newer is None:
            raise
        check(newer)
        return newer
    return schema


def carry_out(plan: Plan) -> int:
    """Start what was planned, and give its exit code."""
    if plan.echo and log.enabled(log.Verbosity.NORMAL):
        click.echo(plan.echo, err=True)
    text = json.dumps(plan.table)
    file = plan.folder / ".fdl" / "resolved.json"
    if plan.in_container:
        # Only what lies in the project can be read in there.
        _keep(file, text)
        return call(plan.command, cwd=plan.folder)
    if len(text) > LONGEST_VARIABLE:
        _keep(file, text)
        text = str(file)
    try:
        return call(plan.command, cwd=plan.folder, **{RESOLVED_CONFIG: text})
    except SetupError as error:
        place = next(iter(plan.table.values()))["origin"]  # of the entry, or of the script
        raise SetupError(f"{place}: {error}") from None


def _keep(file: Path, text: str) -> None:
    try:
        write_atomic(file, text)
    except OSError as error:
        raise ManifestError(f"{file} cannot be written: {error.strerror}.") from None


def _entry(place: Place, table: Table, key: str) -> dict[str, Any]:
    node = table.entries[key]
    return {"value": table.value(key), "origin": node.origin.relative_to(place.manifest.project)}
