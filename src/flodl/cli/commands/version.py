"""`fdl version`: show the versions of flodl, PyTorch and Python."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version

import click

import flodl
from flodl.cli.options import output_options


@click.command("version")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@output_options
def command(as_json: bool) -> None:
    """Show the versions of flodl, PyTorch and Python, and the platform.

    They are read from the package metadata, without importing PyTorch.
    """
    facts = {
        "flodl": flodl.__version__,
        "torch": _installed("torch"),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        click.echo(f"{name:<9} {value or 'not installed'}")


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
