"""Whether what a manifest names can be started: programs, scripts, shell lines and services of containers."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from flodl.cli import container
from flodl.cli.manifest.discovery import is_file
from flodl.cli.manifest.document import Leaf, Table, dotted, plain
from flodl.cli.manifest.loader import Manifest
from flodl.cli.manifest.parser import read_document
from flodl.core.errors import ManifestError

from . import docker, shell_line
from .process import environment_for_children

_PYTHON = re.compile(r"python[0-9.]*(?:\.exe)?\Z")
_OVERRIDES = tuple(name.replace(".y", ".override.y") for name in docker.COMPOSE_FILES)


@dataclass(frozen=True)
class Doubt:
    """A reason why something may not start, with its place; `certain` if it never will."""

    words: str
    certain: bool = True


def refuse(doubts: Iterator[Doubt]) -> None:
    """Turn the first certain doubt into an error."""
    for doubt in doubts:
        if doubt.certain:
            raise ManifestError(doubt.words)


def doubts_about_entry(manifest: Manifest) -> Iterator[Doubt]:
    """Look at the program of a manifest, and at the script if that is Python's; not in a container."""
    node = manifest.document.get("entry")
    if not isinstance(node, Leaf) or not isinstance(node.value, str):
        return
    place = f"{node.origin}: entry"
    if not node.value.strip():
        yield Doubt(f"{place}: it is empty. Write the program that is to run, or take the key out.")
        return
    try:
        shlex.split(node.value)
    except ValueError:
        yield Doubt(f"{place}: a quote in {node.value!r} is never closed. An entry is split at blanks.")
        return
    if _in_container(manifest.document):
        yield from doubts_about_service(manifest, manifest.document)
        return
    program, *words = node.value.split()
    if not _is_there(program, manifest):
        advice = "Install it, or write its whole path here."
        yield Doubt(f"{place}: `{program}` is not found on this machine. {advice}", certain=False)
    script = _script(words) if _PYTHON.match(os.path.basename(program)) else ""
    if script and not os.path.lexists(manifest.folder / script):
        yield Doubt(
            f"{place}: there is no {script} in {manifest.folder}. Mend the path, or write the script."
        )


def doubts_about_script(
    manifest: Manifest, name: str, spec: Table, *, with_append: bool = True
) -> Iterator[Doubt]:
    """Look at the shell line of a `run:` command; the shell reads it, and starts nothing."""
    run, append = spec.value("run"), (spec.value("append") or "") if with_append else ""
    if not isinstance(run, str) or not isinstance(append, str):
        return
    shell = "bash" if _in_container(spec) else "sh"
    if why := _misread(shell, shell_line.compose(run, append, ())):
        key = "append" if append and not _misread(shell, run) else "run"
        place = f"{spec.entries[key].origin}: {dotted(('commands', name, key))}"
        yield Doubt(f"{place}: the shell cannot read {spec.value(key)!r}: {why}. Mend it there.")
    if _in_container(spec):
        yield from doubts_about_service(manifest, spec, where=("commands", name))


def doubts_about_service(manifest: Manifest, spec: Table, *, where: tuple[str, ...] = ()) -> Iterator[Doubt]:
    """Look for the service that a `docker:` names among those of the compose file."""
    node = spec.entries["docker"]
    place = f"{node.origin}: {dotted((*where, 'docker'))}"
    try:
        folder = docker.project_with_compose(manifest.folder.resolve())
    except ManifestError as error:
        yield Doubt(f"{place}: {error}", certain=False)
        return
    file = docker.compose_file(folder)
    assert file is not None
    document = plain(read_document(file))
    services = document.get("services")
    known = list(services) if isinstance(services, dict) else []
    if plain(node) in known:
        return
    # Other files may add services to these.
    more = "include" in document or any(is_file(folder / name) for name in _OVERRIDES)
    named = f"It has {', '.join(known)}." if known else "It has none."
    yield Doubt(f"{place}: {file} has no service {plain(node)!r}. {named}", certain=not more)


def doubts_about_name(name: str, node: Leaf | Table, builtin: frozenset[str]) -> Iterator[Doubt]:
    """Look at the name of a command; `builtin` are those that fdl takes for itself where it stands."""
    place = f"{node.origin}: command `{name}`"
    if not name.strip():
        yield Doubt(f"{place}: this is no name. Give it one.")
    elif name == "<<":
        yield Doubt(f"{place}: merge keys are not supported. Write the commands out, or use `inherit-from:`.")
    elif name.startswith("-"):
        yield Doubt(f"{place}: it reads like an option; only `fdl run {name}` reaches it.", certain=False)
    elif name.split() != [name]:
        yield Doubt(f"{place}: a name with blanks has to be quoted each time: fdl {name!r}.", certain=False)
    elif name in builtin:
        own = f"`fdl {name}` is a command of fdl itself"
        yield Doubt(f"{place}: {own}; only `fdl run {name}` reaches this one.", certain=False)


def _in_container(table: Table) -> bool:
    return bool(table.value("docker")) and not container.inside_container()


def _is_there(program: str, manifest: Manifest) -> bool:
    if os.sep in program:
        return is_file(manifest.folder / program)
    return shutil.which(program, path=environment_for_children()["PATH"]) is not None


def _script(words: list[str]) -> str:
    """Give the script among the words behind `python`, or nothing.

    >>> _script(["-u", "-W", "error", "train.py", "--lr"]), _script(["-m", "train.py"])
    ('train.py', '')
    """
    waiting = iter(words)
    for word in waiting:
        if word in ("-W", "-X"):
            next(waiting, None)
        elif not word.startswith("-"):
            return word if word.endswith(".py") else ""
        elif word[1:2] != "-" and {"m", "c"} & set(word[1:]):
            return ""
    return ""


def _misread(shell: str, line: str) -> str:
    """Say why a shell cannot read a line; one that is not here is not asked."""
    try:
        done = subprocess.run(
            [shell, "-n", "-c", line], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", env=environment_for_children(LC_ALL="C"),
        )  # fmt: skip
    except OSError:
        return ""
    first = done.stderr.strip().partition("\n")[0]
    return re.sub(rf"^{shell}: (?:-c: )?(?:line )?\d+: ", "", first).rstrip(".") if done.returncode else ""
