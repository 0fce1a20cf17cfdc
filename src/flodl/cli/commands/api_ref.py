"""`fdl api-ref`: list and explain the public names of flodl."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

import flodl
from flodl.cli.options import GivenPath, output_options
from flodl.core.errors import SetupError
from flodl.core.paths import suggestion

if TYPE_CHECKING:
    from flodl.cli.reference.entries import Entry


@click.command("api-ref")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--path", "root", type=GivenPath(), help="The folder of a different package to read.")
@output_options
def command(name: str | None, as_json: bool, root: Path | None) -> None:
    """List the public names with signature and one-line doc; with NAME, show one of them in full.

    NAME is a class, a function, a method (Graph.freeze), a package (optim), or part of a name. The source is
    parsed, not imported, so the command is fast.
    """
    from flodl.cli.reference.entries import read_entries

    folder = root or Path(flodl.__file__).parent
    if not (folder / "__init__.py").is_file():
        raise SetupError(
            f"{folder} is not a package: it has no __init__.py. Pass the folder that contains it."
        )
    entries = read_entries(folder.resolve())
    found = _search(entries, name) if name else entries
    if as_json:
        click.echo(json.dumps(_as_json(found), indent=2))
    elif len(found) == 1 and name:
        click.echo(_page(found[0], name))
    else:
        click.echo(_listing(found))


def _search(entries: list[Entry], name: str) -> list[Entry]:
    """Search by full name, package, method and part of a name, in this order; raise if nothing matches."""
    query, last = name.lower(), name.lower().split(".")[-1]
    for matches in (
        lambda entry: query in map(str.lower, _names(entry)),
        lambda entry: query.removeprefix("flodl.") == entry.category,
        lambda entry: any(
            f"{name}.{one.name}".lower() == query for one in entry.members for name in _names(entry)
        ),
        lambda entry: any(one.name.lower() == query for one in entry.members),
        lambda entry: last in _short(entry).lower() if "." not in query else False,
    ):
        found = [entry for entry in entries if matches(entry)]
        if found:
            return found
    known = [_short(entry) for entry in entries]
    methods = [
        f"{_short(entry)}.{one.name}" for entry in entries for one in entry.members if not one.is_constructor
    ]
    pool = methods if "." in name else [*known, *(one.partition(".")[2] for one in methods)]
    hint = suggestion(name, pool, known_as="names")
    raise SetupError(f"flodl has no public name {name!r}. {hint}")


def _listing(entries: list[Entry]) -> str:
    lines = [f"flodl {flodl.__version__}"]
    for category, group in groupby(entries, key=lambda entry: entry.category):
        lines += ["", click.style(category, fg="yellow")]
        for entry in group:
            lines += [
                f"  {click.style(entry.name, fg='green')}",
                f"      {entry.signature}",
                f"      {entry.doc}",
            ]
    return "\n".join(lines)


def _page(entry: Entry, name: str) -> str:
    method = name.split(".")[-1].lower()
    selected = [one for one in entry.members if one.name.lower() == method and not one.is_constructor]
    head = f"{click.style(entry.name, fg='green')}  ({entry.kind}, {entry.file}:{entry.line})"
    lines = [head, f"  {entry.signature}", f"  {entry.doc}"]
    if entry.bases:
        lines.append(f"  bases: {', '.join(entry.bases)}")
    if members := selected or entry.members:
        lines += ["", click.style("Methods", fg="yellow")]
        lines += [f"  {one.signature}" + (f"\n      {one.doc}" if one.doc else "") for one in members]
    if entry.examples and not selected:
        lines += ["", click.style("Example", fg="yellow")]
        lines += [f"  {line}" for text in entry.examples for line in text.rstrip().splitlines()]
    return "\n".join(lines)


def _as_json(entries: list[Entry]) -> dict[str, object]:
    return {
        "version": flodl.__version__,
        "types": [entry.as_json() for entry in entries if entry.kind == "class"],
        "functions": [entry.as_json() for entry in entries if entry.kind == "function"],
    }


def _names(entry: Entry) -> tuple[str, ...]:
    """Return all names of an entry: the one that is shown, the short one, and those in other packages."""
    return (entry.name, _short(entry), *entry.aliases)


def _short(entry: Entry) -> str:
    return entry.name.split(".")[-1]
