"""Carrying out what a target names: a plan first, which can be shown, then the process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from flodl.cli import container
from flodl.cli.args.passthrough import check_tail
from flodl.cli.args.schema import Schema
from flodl.cli.manifest.command_kind import Kind
from flodl.cli.manifest.document import Table
from flodl.cli.manifest.lookup import Target
from flodl.cli.manifest.model import CommandModel, ManifestModel
from flodl.cli.manifest.validation import decode
from flodl.core.environment import inherited_flags
from flodl.core.errors import ManifestError

from . import docker, shell_line
from .entry_files import has_words_of_its_own
from .entry_schema import asked_again, load_schema
from .settings import Setting, collect_settings, covered, resolved, without_denied, without_overruled
from .start_checks import doubts_about_entry, doubts_about_script, refuse
from .value_checks import check_settings, check_variables


@dataclass(frozen=True)
class Plan:
    """What will run, where, and with which values from where."""

    command: list[str]
    folder: Path
    table: Mapping[str, Mapping[str, Any]]
    echo: str = ""
    in_container: bool = field(default=False)
    notes: tuple[str, ...] = ()  # what those should know who ask what would run


def make_plan(target: Target, *, append: bool = True) -> Plan:
    """Work out what a target would start; whatever is wrong with it is an error now."""
    for manifest, name in target.parents:
        decode(ManifestModel, manifest.document)
        spec = manifest.commands.entries[name]
        if isinstance(spec, Table):
            decode(CommandModel, spec, where=("commands", name))
    decode(ManifestModel, target.manifest.document)
    return _plan_script(target, append=append) if target.kind is Kind.RUN else _plan_entry(target)


def _plan_script(target: Target, *, append: bool) -> Plan:
    where = ("commands", target.command)
    spec = decode(CommandModel, target.spec, where=where)
    words = shell_line.user_words(target.title, target.tail)
    refuse(doubts_about_script(target.manifest, target.command, target.spec, with_append=append))
    line = shell_line.compose(spec.run or "", (spec.append or "") if append else "", words)
    table = {
        key: _entry(target, target.spec, key) for key in ("run", "append", "docker") if target.spec.get(key)
    }
    if words:
        table["arguments"] = {"value": list(words), "origin": "command line"}
    folder = target.manifest.folder
    if spec.docker and not container.inside_container():
        inner = folder.resolve()
        mounted = docker.mounted_project(inner, target.manifest.project)
        command = docker.wrap_script(spec.docker, mounted, inner, line, variables=inherited_flags())
        return Plan(command, mounted, table, in_container=True)
    return Plan(["sh", "-c", line], folder, table, notes=_unused_docker(table))


def _plan_entry(target: Target) -> Plan:
    manifest = target.manifest
    document = manifest.document
    entry = document.value("entry")
    if not entry or not entry.strip():
        raise ManifestError(
            f"{manifest.path} has no `entry:`, so there is nothing to run in {manifest.folder}. "
            f"Add one, or name one of its commands: {', '.join(manifest.commands.entries) or 'none so far'}."
        )
    refuse(doubts_about_entry(manifest))
    preset = target.spec if target.kind is Kind.PRESET else None
    if preset is not None:
        decode(CommandModel, preset, where=("commands", target.command))
    schema = load_schema(manifest)
    settings = collect_settings(document, preset, project=manifest.project)
    # The variables of this machine do not reach a container.
    on_host = not document.value("docker") or container.inside_container()
    settings, tail = without_denied(settings, target.tail, schema)
    target = replace(target, tail=tail)
    schema = _checked(target, schema, settings, on_host=on_host)
    table = {"entry": _entry(target, document, "entry")}
    if document.get("docker"):
        table["docker"] = _entry(target, document, "docker")
    table |= resolved(settings, target.tail, schema, with_environment=on_host)
    words = entry.split()
    for setting in without_overruled(settings, schema) if on_host else settings:
        words += setting.words(schema)
    notes = covered(manifest, target.command, preset) if preset is not None else []
    return _started(target, [*words, *target.tail], table, notes)


def _unused_docker(table: Mapping[str, Any]) -> tuple[str, ...]:
    if "docker" not in table:
        return ()
    return (f"{table['docker']['origin']}: docker is not used, because this is a container already.",)


def _started(target: Target, words: list[str], table: dict[str, Any], notes: list[str]) -> Plan:
    """Start the words here, or in the container that the manifest names."""
    manifest = target.manifest
    line = " ".join(map(shell_line.quote, words))
    service = manifest.document.value("docker")
    if service and not container.inside_container():
        inner = manifest.folder.resolve()
        mounted = docker.mounted_project(inner, manifest.project)
        command = docker.wrap_entry(service, mounted, inner, words, variables=inherited_flags())
        echo = f"fdl: [{service}] {line}" if target.kind is Kind.PRESET else ""
        return Plan(command, mounted, table, echo, in_container=True, notes=tuple(notes))
    echo = f"fdl: {line}" if target.kind is Kind.PRESET else ""
    return Plan(words, manifest.folder, table, echo, notes=(*notes, *_unused_docker(table)))


def _checked(
    target: Target, schema: Schema | None, settings: list[Setting], *, on_host: bool
) -> Schema | None:
    """Hold what is about to run to what the entry takes; before it refuses, the entry is asked once more."""
    if schema is None:
        return None

    entry = str(target.manifest.document.value("entry"))
    is_complete = not has_words_of_its_own(target.manifest.folder, entry)

    def check(known: Schema) -> None:
        check_tail(known, target.tail, title=target.title, is_complete=is_complete)
        check_settings(known, settings)
        if on_host:
            check_variables(known, target.tail)

    try:
        check(schema)
    except (ManifestError, click.UsageError):
        newer = asked_again(target.manifest, schema)
        if newer is None:
            raise
        check(newer)
        return newer
    return schema


def _entry(target: Target, table: Table, key: str) -> dict[str, Any]:
    node = table.entries[key]
    return {"value": table.value(key), "origin": node.origin.relative_to(target.manifest.project)}
