"""`fdl diagnose`: show the machine, torch and settings, and their problems."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from flodl.cli.options import output_options
from flodl.core.formats import format_bytes


@click.command("diagnose")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@output_options
def command(as_json: bool) -> None:
    """Show system, GPUs, torch, libtorch and settings, and problems with them.

    Works without torch, without a GPU, and with a torch that cannot be imported. Include its output in bug
    reports.
    """
    from flodl.cli.machine.report import gather

    report = gather()
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    for title, rows in _sections(report):
        click.echo(click.style(title, fg="yellow"))
        for name, value in rows:
            click.echo(f"  {name:<22} {value}" if name else f"  {value}")
    _echo_problems(report["problems"])


def _sections(report: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, object]]]]:
    context, system = report["context"], report["system"]
    yield (
        "flodl",
        [
            ("version", report["flodl"]["version"]),
            ("path", report["flodl"]["path"]),
            ("builds of torch in", f"{context['mode']} ({context['root']})"),
            ("installed there", ", ".join(report["builds"]["installed"]) or "none"),
            ("active", report["builds"]["active"] or "none"),
        ],
    )
    yield (
        "System",
        [
            ("os", system["os"]),
            ("python", f"{system['python']} ({system['executable']})"),
            ("cpu", f"{system['cpu']}, {system['threads']} threads"),
            ("memory", f"{system['ram_gb'] or '?'} GB"),
            ("disk", f"{system['disk_free_gb'] or '?'} GB free here"),
            ("docker", system["docker"] or "not found"),
        ],
    )
    yield "GPUs", _gpu_rows(report)
    yield "torch", _torch_rows(report["torch"])
    yield "libtorch", _rows(report["libtorch"], if_empty="none")
    yield "Environment", _rows(report["environment"], if_empty="none set")
    yield "Packages", _rows({k: v or "missing" for k, v in report["packages"].items()})
    yield "Extras", [(name, _extra(facts)) for name, facts in report["extras"].items()]


def _gpu_rows(report: dict[str, Any]) -> list[tuple[str, object]]:
    driver = report["driver"]
    rows: list[tuple[str, object]] = [(name, version) for name, version in driver.items() if version]
    for gpu in report["gpus"]:
        size = f", {format_bytes(gpu['vram_bytes'])}" if gpu["vram_bytes"] else ""
        verdict = "supported by this torch" if gpu["arch_compatible"] else "not supported by this torch"
        rows.append((f"GPU {gpu['index']}", f"{gpu['name']} ({gpu['sm'] or '?'}){size}: {verdict}"))
    return rows or [("", "none found")]


def _torch_rows(torch: dict[str, Any] | None) -> list[tuple[str, object]]:
    if torch is None:
        return [("", "not installed")]
    shown = {
        "version": torch.get("version"),
        "path": torch.get("path"),
        "cuda": torch.get("cuda"),
        "cudnn": torch.get("cudnn"),
        "rocm": torch.get("hip"),
        "compiled for": " ".join(torch.get("code_for") or []),
        "GPU usable": _yes_or_no(torch.get("gpu_usable")),
        "MPS usable": _yes_or_no(torch.get("mps_usable")),
        "threads": torch.get("num_threads"),
        "error": torch.get("error"),
    }
    return _rows(shown)


def _rows(facts: dict[str, Any] | None, *, if_empty: str = "none") -> list[tuple[str, object]]:
    rows = [(name, value) for name, value in (facts or {}).items() if value not in (None, "")]
    return [*rows] or [("", if_empty)]


def _extra(facts: dict[str, Any]) -> str:
    return "complete" if facts["present"] else f"missing: {', '.join(facts['missing'])}"


def _yes_or_no(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _echo_problems(problems: list[dict[str, str]]) -> None:
    click.echo(click.style("Problems", fg="yellow"))
    for problem in problems:
        click.echo(f"  {click.style('•', fg='red')} {problem['what']}.")
        if problem["do"]:
            click.echo(f"    {problem['do']}")
    if not problems:
        click.echo("  none found")
