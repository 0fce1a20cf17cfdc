"""Help pages for commands of a manifest, which is not validated for this."""

from __future__ import annotations

import click

from flodl.core.errors import FlodlError

from .args.parameter import Parameter, format_value
from .args.schema import Schema
from .execution.entry_schema import load_schema
from .execution.settings import collect_settings
from .execution.shell_line import quote
from .manifest.command_kind import Kind, kind_or_none
from .manifest.document import Leaf, Table
from .manifest.loader import Manifest
from .manifest.lookup import Target
from .project_summary import summary_of

Rows = list[tuple[str, str]]


def help_page(ctx: click.Context, target: Target) -> str:
    """Return the help page of a project command."""
    formatter = ctx.make_formatter()
    write_page(formatter, target, prefix=target.title)
    return formatter.getvalue().rstrip("\n")


def write_page(formatter: click.HelpFormatter, target: Target, *, prefix: str) -> None:
    """Write the help page of a project command, which the words `prefix` run."""
    writers = {Kind.RUN: _write_run, Kind.PATH: _write_path, Kind.PRESET: _write_preset}
    writers[target.kind](formatter, target, prefix)


def _write_run(formatter: click.HelpFormatter, target: Target, prefix: str) -> None:
    run, append = (str(target.spec.value(key) or "").strip() for key in ("run", "append"))
    pre, _, post = (
        append.partition("-- ") if append.startswith("-- ") or " -- " in append else (append, "", "")
    )
    formatter.write_usage(prefix, "[-- ARGS... [-- RUNNER_ARGS...]]")
    _write_description(formatter, target.spec.value("description"))
    line = " ".join(
        part for part in (run, pre.strip(), "[ARGS...]", "--" if post else "", post.strip()) if part
    )
    rows = [("runs", line), ("in", str(target.manifest.folder))]
    if service := target.spec.value("docker"):
        rows.append(("docker", f"{service} (outside of a container)"))
    with formatter.section("Command"):
        formatter.write_dl(rows)
    formatter.write_paragraph()
    formatter.write_text(
        "Arguments after `--` go to the script. `--no-append` omits what the manifest appends."
    )


def _write_path(formatter: click.HelpFormatter, target: Target, prefix: str) -> None:
    manifest = target.manifest
    schema = _schema(manifest)
    presets = [name for name, node in _commands(target) if kind_or_none(name, node) is Kind.PRESET]
    others = [name for name, node in _commands(target) if name not in presets]
    slot = str(manifest.document.value("arg-name") or "preset")
    slots = "|".join(filter(None, [f"<{slot}>" if presets else "", "<command>" if others else ""]))
    arguments = schema.arguments if schema else []
    words = [f"[{slots}]" if slots else "", *map(_placeholder, arguments), "[OPTIONS]"]
    formatter.write_usage(prefix, " ".join(filter(None, words)))
    _write_description(formatter, manifest.describe())
    _write_rows(formatter, "Arguments", [(_placeholder(one), _description(one)) for one in arguments])
    _write_rows(formatter, f"{slot.capitalize()}s", [(name, summary_of(manifest, name)) for name in presets])
    _write_rows(formatter, "Commands", [(name, summary_of(manifest, name)) for name in others])
    _write_options(formatter, schema)
    _write_entry(formatter, manifest)
    settings = collect_settings(manifest.document, None, schema, project=manifest.project)
    _write_rows(
        formatter, "Defaults", [(one.path, f"{one.shown(schema)}  ({one.origin})") for one in settings]
    )


def _write_preset(formatter: click.HelpFormatter, target: Target, prefix: str) -> None:
    manifest = target.manifest
    schema = _schema(manifest)
    arguments = schema.arguments if schema else []
    formatter.write_usage(prefix, " ".join([*map(_placeholder, arguments), "[OPTIONS]"]))
    _write_description(formatter, target.spec.value("description"))
    _write_rows(formatter, "Arguments", [(_placeholder(one), _description(one)) for one in arguments])
    settings = collect_settings(manifest.document, target.spec, schema, project=manifest.project)
    _write_rows(formatter, "Values", [(one.path, f"{one.shown(schema)}  ({one.origin})") for one in settings])
    words = str(manifest.document.value("entry") or "").split()
    for one in settings:
        words += one.words(schema)
    _write_rows(formatter, "Command", [("runs", " ".join(map(quote, words))), ("in", str(manifest.folder))])
    _write_options(formatter, schema)


def _write_description(formatter: click.HelpFormatter, text: object) -> None:
    if isinstance(text, str) and text.strip():
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text.strip())


def _write_rows(formatter: click.HelpFormatter, title: str, rows: Rows) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)


def _write_options(formatter: click.HelpFormatter, schema: Schema | None) -> None:
    rows = []
    for name, one in (schema.options if schema else {}).items():
        label = f"-{one.short}, --{name}" if one.short else f"--{name}"
        if one.type == "bool" and one.default in (True, "true"):
            label = f"{label} / --no-{name}"
        rows.append((f"{label} {one.metavar}" if one.takes_value else label, _description(one)))
    rows += [
        ("-h, --help", "Show this page."),
        ("--refresh-schema", "Query the entry for its options again."),
    ]
    _write_rows(formatter, "Options", rows)


def _placeholder(one: Parameter) -> str:
    text = f"<{one.long}>{'...' if one.variadic else ''}"
    return text if one.required else f"[{text}]"


def _description(one: Parameter) -> str:
    notes = []
    if one.is_repeatable and one.kind == "option":
        notes.append("(repeat or comma-separate)")
    if one.choices:
        notes.append(f"[possible: {', '.join(map(str, one.choices))}]")
    if one.default not in (None, False, "false", [], ""):
        notes.append(f"[default: {format_value(one.default)}]")
    if one.env:
        notes.append(f"[env: {one.env}]")
    return "  ".join(filter(None, [one.help, *notes]))


def _write_entry(formatter: click.HelpFormatter, manifest: Manifest) -> None:
    entry, service = manifest.document.value("entry"), manifest.document.value("docker")
    if entry:
        _write_rows(
            formatter, "Entry", [("runs", str(entry)), *([("docker", str(service))] if service else [])]
        )


def _commands(target: Target) -> list[tuple[str, Leaf | Table]]:
    return sorted(target.manifest.commands.entries.items(), key=lambda pair: pair[0])


def _schema(manifest: Manifest) -> Schema | None:
    try:
        return load_schema(manifest)
    except FlodlError:
        return None
