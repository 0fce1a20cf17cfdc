"""Completion candidates for commands, options and values at any depth of a project."""

from __future__ import annotations

import os
from pathlib import Path

from click.shell_completion import CompletionItem

from flodl.core.errors import FlodlError

from .args.click_adapter import run_completer
from .args.parameter import Parameter
from .execution.entry_schema import load_schema
from .manifest.command_kind import Kind, kind_or_none
from .manifest.loader import Manifest
from .manifest.lookup import Target, resolve_target
from .options import NO_APPEND_HELP
from .project import Project
from .project_summary import summary_of

TAB_LIMIT_S = 1.5  # nobody waits longer for a TAB; slower programs are queried when they run
GLOBAL_FLAGS = {
    "--help": "Show the help of this command.",
    "--env": "Apply an overlay to the manifest.",
    "--verbose": "Print more.",
    "--quiet": "Print errors only.",
    "--ansi": "Print in color.",
    "--no-ansi": "Print plain text.",
}


def project_words(project: Project) -> list[CompletionItem]:
    """Return the commands and environments of the project."""
    manifest = project.manifest
    if manifest is None:
        return []
    overlays = [] if project.overlay else project.overlays()
    return [*_commands(manifest), *(CompletionItem(name, help="environment") for name in overlays)]


def words_after(manifest: Manifest, words: tuple[str, ...], incomplete: str) -> list[CompletionItem]:
    """Return the candidates after these words, or none if the manifest has errors."""
    words = tuple(word for word in words if word != "=")  # bash splits it off as a separate word
    try:
        target = resolve_target(manifest, words[0], words[1:])
        found = _candidates(target, incomplete)
    except FlodlError:
        return []
    return [item for item in found if item.type != "plain" or item.value.startswith(incomplete)]


def _candidates(target: Target, incomplete: str) -> list[CompletionItem]:
    tail = target.tail
    if "--" in tail:
        return _files(target.manifest.folder, incomplete)
    if target.kind is Kind.RUN:
        return [CompletionItem("--"), CompletionItem("--no-append", help=NO_APPEND_HELP), *_global_flags()]
    schema = load_schema(target.manifest, timeout_s=TAB_LIMIT_S)
    options = schema.options if schema else {}
    shorts = {f"-{one.short}": one for one in options.values() if one.short}
    if incomplete.startswith("--") and "=" in incomplete:
        name, _, value = incomplete.partition("=")
        known = options.get(name[2:])
        found = _values(target, known, value) if known else []
        known_words = (item for item in found if item.type != "file")
        return [CompletionItem(f"{name}={item.value}", type=item.type) for item in known_words]
    previous = tail[-1] if tail else ""
    if previous == "--env":
        return [CompletionItem(name) for name in Project().overlays()]
    known = options.get(previous[2:]) if previous.startswith("--") else shorts.get(previous)
    if known and known.takes_value:
        return _values(target, known, incomplete)
    if incomplete.startswith("-"):
        names = [(f"--{name}", one) for name, one in options.items()]
        names += [(f"--no-{name}", one) for name, one in options.items() if one.has_negation]
        return [CompletionItem(name, help=one.help or None) for name, one in names] + _global_flags()
    found = _commands(target.manifest) if target.kind is Kind.PATH and not tail else []
    for one in (schema.arguments if schema else [])[:1]:
        # A word with a dash in front would be an option.
        found += [item for item in _values(target, one, incomplete) if not item.value.startswith("-")]
    return found


def _values(target: Target, one: Parameter, incomplete: str) -> list[CompletionItem]:
    if one.choices:
        return [CompletionItem(str(choice)) for choice in one.choices]
    if one.completer:
        return [CompletionItem(word) for word in run_completer(one.completer, target.manifest.folder)]
    return _files(target.manifest.folder, incomplete) if one.scalar == "path" else []


def _files(folder: Path, incomplete: str) -> list[CompletionItem]:
    """Return the files in the folder in which the program runs.

    If that is the working directory, the shell completes files itself, and does it better.
    """
    if os.path.isabs(incomplete) or incomplete.startswith("~") or folder.resolve() == Path.cwd().resolve():
        return [CompletionItem(incomplete, type="file")]
    parent, prefix = os.path.split(incomplete)
    try:
        found = sorted(os.scandir(folder / parent), key=lambda entry: entry.name)
    except OSError:
        return []
    return [
        CompletionItem(_as_path(parent, entry.name) + ("/" if entry.is_dir() else ""), type="path")
        for entry in found
        if entry.name.startswith(prefix) and (prefix or not entry.name.startswith("."))
    ]


def _as_path(parent: str, name: str) -> str:
    """Return the path of a file; a name like `-x` would be an option, and `~x` the folder of a user."""
    return f"./{name}" if not parent and name.startswith(("-", "~")) else os.path.join(parent, name)


def _commands(manifest: Manifest) -> list[CompletionItem]:
    known = manifest.commands.entries.items()
    return [
        CompletionItem(name, help=summary_of(manifest, name))
        for name, node in sorted(known, key=lambda pair: pair[0])
        if kind_or_none(name, node) and not name.startswith("-")
    ]


def _global_flags() -> list[CompletionItem]:
    return [CompletionItem(flag, help=words) for flag, words in GLOBAL_FLAGS.items()]
