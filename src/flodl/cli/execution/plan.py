"""Plan the execution of a command: check it, and work out the exact words to run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
from .entry_files import has_arguments
from .entry_schema import changed_schema, load_schema
from .overrides import contradictions, key_problems, overridden_notes
from .settings import (
    Setting,
    apply_negations,
    collect_settings,
    resolve_values,
    without_replaced_lists,
    without_variables,
)
from .start_checks import entry_issues, raise_fatal, script_issues
from .value_checks import check_settings, check_variables


@dataclass(frozen=True)
class Plan:
    """The words to run, the folder, and every value with its origin."""

    command: list[str]
    folder: Path
    table: Mapping[str, Mapping[str, Any]]
    echo: str = ""
    in_container: bool = field(default=False)
    notes: tuple[str, ...] = ()  # shown by --dry-run


def make_plan(target: Target, *, append: bool = True, without: Collection[str] = ()) -> Plan:
    """Work out what a target would run. Raise for anything that is wrong with it.

    The options in `without` are left out of the settings of the manifest.
    """
    for manifest, name in target.parents:
        decode(ManifestModel, manifest.document)
        spec = manifest.commands.entries[name]
        if isinstance(spec, Table):
            decode(CommandModel, spec, where=("commands", name))
    decode(ManifestModel, target.manifest.document)
    return _plan_script(target, append=append) if target.kind is Kind.RUN else _plan_entry(target, without)


def _plan_script(target: Target, *, append: bool) -> Plan:
    where = ("commands", target.command)
    spec = decode(CommandModel, target.spec, where=where)
    words = shell_line.user_words(target.title, target.tail)
    raise_fatal(script_issues(target.manifest, target.command, target.spec, with_append=append))
    line = shell_line.compose(spec.run or "", (spec.append or "") if append else "", words)
    table = {
        key: _value_with_origin(target, target.spec, key)
        for key in ("run", "append", "docker")
        if target.spec.get(key)
    }
    if words:
        table["arguments"] = {"value": list(words), "origin": "command line"}
    folder = target.manifest.folder
    if spec.docker and not container.inside_container():
        inner = folder.resolve()
        mounted = docker.mounted_project(inner, target.manifest.project)
        command = docker.wrap_script(spec.docker, mounted, inner, line, variables=inherited_flags())
        return Plan(command, mounted, table, in_container=True)
    return Plan(["sh", "-c", line], folder, table, notes=_unused_docker_note(table))


def _plan_entry(target: Target, without: Collection[str]) -> Plan:
    manifest = target.manifest
    document = manifest.document
    entry = document.value("entry")
    if not entry or not entry.strip():
        raise ManifestError(
            f"{manifest.path} has no `entry:`, so there is nothing to run in {manifest.folder}. "
            f"Add one, or run one of its commands: {', '.join(manifest.commands.entries) or 'none so far'}."
        )
    raise_fatal(entry_issues(manifest))
    preset = target.spec if target.kind is Kind.PRESET else None
    if preset is not None:
        decode(CommandModel, preset, where=("commands", target.command))
    schema = load_schema(manifest)
    _check_options(target, preset, schema)
    settings = collect_settings(document, preset, schema, project=manifest.project)
    settings = [setting for setting in settings if setting.flag not in without]
    # Environment variables of this machine do not reach a container.
    on_host = not document.value("docker") or container.inside_container()
    settings, tail = apply_negations(settings, target.tail, schema)
    target = replace(target, tail=tail)
    schema = _check_values(target, schema, settings, on_host=on_host)
    settings = without_replaced_lists(settings, target.tail, schema)
    table = {"entry": _value_with_origin(target, document, "entry")}
    if document.get("docker"):
        table["docker"] = _value_with_origin(target, document, "docker")
    table |= resolve_values(settings, target.tail, schema, with_environment=on_host)
    words = entry.split()
    for setting in without_variables(settings, schema) if on_host else settings:
        words += setting.words(schema)
    notes = overridden_notes(manifest, target.command, preset, schema) if preset is not None else []
    return _wrap(target, [*words, *target.tail], table, notes)


def _check_options(target: Target, preset: Table | None, schema: Schema | None) -> None:
    tables = [((), target.manifest.document), *([(("commands", target.command), preset)] if preset else [])]
    for where, table in tables:
        for check in (contradictions, key_problems):
            for problem in check(table, schema, where=where):
                raise ManifestError(problem)


def _unused_docker_note(table: Mapping[str, Any]) -> tuple[str, ...]:
    if "docker" not in table:
        return ()
    return (f"{table['docker']['origin']}: docker is not used, because fdl already runs in a container.",)


def _wrap(target: Target, words: list[str], table: dict[str, Any], notes: list[str]) -> Plan:
    """Plan to run the words here, or in the container that the manifest names."""
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
    return Plan(words, manifest.folder, table, echo, notes=(*notes, *_unused_docker_note(table)))


def _check_values(
    target: Target, schema: Schema | None, settings: list[Setting], *, on_host: bool
) -> Schema | None:
    """Check all values against the schema of the entry. Before raising, ask the entry for a newer schema."""
    if schema is None:
        return None

    entry = str(target.manifest.document.value("entry"))
    is_complete = not has_arguments(target.manifest.folder, entry)

    def check(known: Schema) -> None:
        check_tail(known, target.tail, title=target.title, is_complete=is_complete)
        check_settings(known, settings)
        if on_host:
            check_variables(known, target.tail)

    try:
        check(schema)
    except (ManifestError, click.UsageError):
        newer = changed_schema(target.manifest, schema)
        if newer is None:
            raise
        check(newer)
        return newer
    return schema


def _value_with_origin(target: Target, table: Table, key: str) -> dict[str, Any]:
    node = table.entries[key]
    return {"value": table.value(key), "origin": node.origin.relative_to(target.manifest.project)}
