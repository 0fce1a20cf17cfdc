"""Check whether the programs, scripts, shell lines and container services of a manifest can start."""

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
from flodl.core.formats import shell_word

from . import docker, shell_line
from .process import child_environment

_PYTHON = re.compile(r"python[0-9.]*(?:\.exe)?\Z")
_COMPOSE_OVERRIDES = tuple(name.replace(".y", ".override.y") for name in docker.COMPOSE_FILES)


@dataclass(frozen=True)
class Issue:
    """A reason why something may not start, with its origin. It is fatal if it can never start."""

    message: str
    fatal: bool = True


def raise_fatal(issues: Iterator[Issue]) -> None:
    """Raise the first fatal issue as an error."""
    for issue in issues:
        if issue.fatal:
            raise ManifestError(issue.message)


def entry_issues(manifest: Manifest) -> Iterator[Issue]:
    """Check the program of a manifest, and its script if the program is Python.

    For a container, check only the service.
    """
    node = manifest.document.get("entry")
    if not isinstance(node, Leaf) or not isinstance(node.value, str):
        return
    prefix = f"{node.origin}: entry"
    if not node.value.strip():
        yield Issue(f"{prefix}: it is empty. Write the program to run, or remove the key.")
        return
    try:
        shlex.split(node.value)
    except ValueError:
        yield Issue(f"{prefix}: a quote in {node.value!r} is not closed. An entry is split at spaces.")
        return
    if _in_container(manifest.document):
        yield from service_issues(manifest, manifest.document)
        return
    program, *words = node.value.split()
    if not _exists(program, manifest):
        advice = "Install it, or write its full path here."
        yield Issue(f"{prefix}: `{program}` was not found on this machine. {advice}", fatal=False)
    script = _script(words) if _PYTHON.match(os.path.basename(program)) else ""
    if script and not os.path.lexists(manifest.folder / script):
        yield Issue(
            f"{prefix}: there is no {script} in {manifest.folder}. Fix the path, or create the script."
        )


def script_issues(manifest: Manifest, name: str, spec: Table, *, with_append: bool = True) -> Iterator[Issue]:
    """Check the syntax of the shell line of a `run:` command, without running it."""
    run, append = spec.value("run"), (spec.value("append") or "") if with_append else ""
    if not isinstance(run, str) or not isinstance(append, str):
        return
    shell = "bash" if _in_container(spec) else "sh"
    if error := _syntax_error(shell, shell_line.compose(run, append, ())):
        key = "append" if append and not _syntax_error(shell, run) else "run"
        prefix = f"{spec.entries[key].origin}: {dotted(('commands', name, key))}"
        yield Issue(f"{prefix}: the shell cannot parse {spec.value(key)!r}: {error}. Fix it there.")
    if _in_container(spec):
        yield from service_issues(manifest, spec, where=("commands", name))


def service_issues(manifest: Manifest, spec: Table, *, where: tuple[str, ...] = ()) -> Iterator[Issue]:
    """Check that the compose file has the service that `docker:` names."""
    node = spec.entries["docker"]
    prefix = f"{node.origin}: {dotted((*where, 'docker'))}"
    try:
        folder = docker.project_with_compose(manifest.folder.resolve())
    except ManifestError as error:
        yield Issue(f"{prefix}: {error}", fatal=False)
        return
    file = docker.compose_file(folder)
    assert file is not None
    document = plain(read_document(file))
    services = document.get("services")
    known = list(services) if isinstance(services, dict) else []
    if plain(node) in known:
        return
    # Other files may add services.
    may_have_more = "include" in document or any(is_file(folder / name) for name in _COMPOSE_OVERRIDES)
    listing = f"It has {', '.join(known)}." if known else "It has none."
    yield Issue(f"{prefix}: {file} has no service {plain(node)!r}. {listing}", fatal=not may_have_more)


def name_issues(name: str, node: Leaf | Table, builtin: frozenset[str]) -> Iterator[Issue]:
    """Check the name of a command. `builtin` are the names of fdl's own commands at this level."""
    prefix = f"{node.origin}: command `{name}`"
    if not name.strip():
        yield Issue(f"{prefix}: the name is empty. Give it one.")
    elif name == "<<":
        yield Issue(
            f"{prefix}: merge keys are not supported. Write the commands out, or use `inherit-from:`."
        )
    elif name.startswith("-"):
        yield Issue(
            f"{prefix}: the name looks like an option. Only `fdl run {name}` can run it.", fatal=False
        )
    elif name.split() != [name]:
        yield Issue(
            f"{prefix}: a name with spaces has to be quoted each time: fdl {shell_word(name)}.", fatal=False
        )
    elif name in builtin:
        yield Issue(
            f"{prefix}: it replaces fdl's own command of that name. `fdl {name}` and `fdl run {name}` run "
            f"this one, `fdl --builtin {name}` runs fdl's own.",
            fatal=False,
        )


def _in_container(table: Table) -> bool:
    return bool(table.value("docker")) and not container.inside_container()


def _exists(program: str, manifest: Manifest) -> bool:
    if os.sep in program:
        return is_file(manifest.folder / program)
    return shutil.which(program, path=child_environment()["PATH"]) is not None


def _script(words: list[str]) -> str:
    """Return the script among the words after `python`, or an empty string.

    >>> _script(["-u", "-W", "error", "train.py", "--lr"]), _script(["-m", "train.py"])
    ('train.py', '')
    """
    remaining = iter(words)
    for word in remaining:
        if word in ("-W", "-X"):
            next(remaining, None)
        elif not word.startswith("-"):
            return word
        elif word[1:2] != "-" and {"m", "c"} & set(word[1:]):
            return ""
    return ""


def _syntax_error(shell: str, line: str) -> str:
    """Return the syntax error that a shell reports for a line. A shell that is not installed reports none."""
    try:
        done = subprocess.run(
            [shell, "-n", "-c", line], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", env=child_environment(LC_ALL="C"),
        )  # fmt: skip
    except OSError:
        return ""
    first = done.stderr.strip().partition("\n")[0]
    return re.sub(rf"^{shell}: (?:-c: )?(?:line )?\d+: ", "", first).rstrip(".") if done.returncode else ""
