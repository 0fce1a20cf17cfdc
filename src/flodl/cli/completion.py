"""What a shell may offer next, at any depth of a project."""

from __future__ import annotations

import os
from pathlib import Path

from click.shell_completion import CompletionItem

from flodl.core.errors import FlodlError

from .args.click_adapter import run_completer
from .args.parameter import Parameter
from .execution.entry_schema import load_schema
from .listing import summary_of
from .manifest.command_kind import Kind, kind_or_none
from .manifest.loader import Manifest
from .manifest.lookup import Target, resolve_target
from .options import NO_APPEND_HELP
from .project import Project

TAB_LIMIT_S = 1.5  # nobody waits longer for a TAB; a program that is slower is asked when it is started
GLOBAL_FLAGS = {
    "--help": "Show what this command takes.",
    "--env": "Lay an overlay over the manifest.",
    "--verbose": "Print more.",
    "--quiet": "Print errors only.",
    "--ansi": "Print in colour.",
    "--no-ansi": "Print plain text.",
}


def top_words(project: Project) -> list[CompletionItem]:
    """Give the commands and the environments of the project."""
    manifest = project.manifest
    if manifest is None:
        return []
    overlays = [] if project.overlay else project.overlays()
    return [*_commands(manifest), *(CompletionItem(name, help="environment") for name in overlays)]


def words_after(manifest: Manifest, words: tuple[str, ...], incomplete: str) -> list[CompletionItem]:
    """Give what may follow these words; mistakes in a manifest give nothing."""
    words = tuple(word for word in words if word != "=")  # bash makes a word of its own of it
    try:
        target = resolve_target(manifest, words[0], words[1:])
        found = _after(target, incomplete)
    except FlodlError:
        return []
    return [item for item in found if item.type != "plain" or item.value.startswith(incomplete)]


def _after(target: Target, incomplete: str) -> list[CompletionItem]:
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
    before = tail[-1] if tail else ""
    if before == "--env":
        return [CompletionItem(name) for name in Project().overlays()]
    known = options.get(before[2:]) if before.startswith("--") else shorts.get(before)
    if known and known.takes_value:
        return _values(target, known, incomplete)
    if incomplete.startswith("-"):
        names = [(f"--{name}", one) for name, one in options.items()]
        names += [(f"--no-{name}", one) for name, one in options.items() if one.has_negation]
        return [CompletionItem(name, help=one.help or None) for name, one in names] + _global_flags()
    found = _commands(target.manifest) if target.kind is Kind.PATH and not tail else []
    for one in (schema.arguments if schema else [])[:1]:
        found += _values(target, one, incomplete)
    return found


def _values(target: Target, one: Parameter, incomplete: str) -> list[CompletionItem]:
    if one.choices:
        return [CompletionItem(str(choice)) for choice in one.choices]
    if one.completer:
        return [CompletionItem(word) for word in run_completer(one.completer, target.manifest.folder)]
    return _files(target.manifest.folder, incomplete) if one.scalar == "path" else []


def _files(folder: Path, incomplete: str) -> list[CompletionItem]:
    """Offer files as the program will look for them: from its own folder, wherever the shell is.

    Where that is the same, the shell does it, and better.
    """
    if os.path.isabs(incomplete) or incomplete.startswith("~") or folder.resolve() == Path.cwd().resolve():
        return [CompletionItem(incomplete, type="file")]
    before, begun = os.path.split(incomplete)
    try:
        found = sorted(os.scandir(folder / before), key=lambda entry: entry.name)
    except OSError:
        return []
    return [
        CompletionItem(os.path.join(before, entry.name) + ("/" if entry.is_dir() else ""), type="path")
        for entry in found
        if entry.name.startswith(begun) and (begun or not entry.name.startswith("."))
    ]


def _commands(manifest: Manifest) -> list[CompletionItem]:
    known = manifest.commands.entries.items()
    return [
        CompletionItem(name, help=summary_of(manifest, name))
        for name, node in sorted(known, key=lambda pair: pair[0])
        if kind_or_none(name, node)
    ]


def _global_flags() -> list[CompletionItem]:
    return [CompletionItem(flag, help=words) for flag, words in GLOBAL_FLAGS.items()]
