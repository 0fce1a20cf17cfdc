"""`fdl libtorch build`: compile libtorch or torch for the GPUs of this machine."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click

from flodl.cli.machine import builds, source_build, toolchain
from flodl.cli.machine.detection import detect
from flodl.cli.machine.hardware import Gpu, Hardware, run_tool
from flodl.cli.machine.libtorch import Libtorch
from flodl.cli.machine.store import Store, find_store
from flodl.cli.machine.terminal import confirm, line_printer
from flodl.cli.options import GivenPath, output_options
from flodl.core.errors import SetupError
from flodl.core.formats import shell_word

_UNKNOWN = toolchain.Toolkit(Path("nvcc"), "not found", ())


@click.command("build")
@click.option(
    "--archs", metavar="LIST", help="Compute capabilities, as in '6.1;12.0'; default: those present."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Files to compile at once; default: by memory.")
@click.option("--source", type=GivenPath(), help="A checkout of PyTorch with its submodules.")
@click.option("--torch", "version", default=builds.TORCH, show_default=True, help="The version of torch.")
@click.option("--wheel", is_flag=True, help="Compile a wheel for Python instead of libtorch for C++.")
@click.option("--no-activate", is_flag=True, help="Do not change the active variant.")
@click.option("--force", is_flag=True, help="Compile even if the same build exists.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show the plan and the commands without running them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@output_options
def build(
    archs: str | None,
    jobs: int | None,
    source: Path | None,
    version: str,
    wheel: bool,
    no_activate: bool,
    force: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Compile libtorch, or a wheel of torch, for GPUs that no single published build supports.

    It takes hours. An interrupted build continues where it stopped when the same command is run again.
    Everything that it needs is checked before it starts.
    """
    echo, hardware, store = line_printer(to_stderr=as_json), detect(), find_store()
    wanted = source_build.parse_archs(archs) if archs is not None else source_build.archs_of(hardware)
    names = [arch.name for arch in wanted]
    toolkits = toolchain.find_toolkits()
    count, reason = source_build.jobs_of(hardware, jobs)
    spec = source_build.BuildSpec(
        wanted,
        toolchain.choose_toolkit(names, toolkits) or (toolkits or [_UNKNOWN])[0],
        count,
        reason,
        source=source.resolve() if source else None,
        version=version,
        wheel=wheel,
    )
    layout = source_build.Layout(store, spec)
    echo(source_build.describe(layout, _notes(names)))
    existing = Libtorch(f"builds/{spec.name}", layout.target)
    if not wheel and existing.lib.is_dir() and existing.version == version and not force and not dry_run:
        echo("This build exists already. Pass --force to compile it again.")
        return
    missing = _missing(hardware, names, toolkits, layout, check_network=not dry_run)
    steps = source_build.plan(layout)
    if dry_run:
        for step in steps:
            click.echo(shlex.join(step.command), err=as_json)
    if missing:
        _print_json(as_json, layout, steps, missing, built=False)
        listed = "\n".join(f"  - {one}" for one in missing)
        raise SetupError(f"torch cannot be compiled here. What is missing:\n{listed}")
    if not dry_run:
        confirm("Compile it? It takes hours.", yes=yes)
        source_build.build(layout, echo)
        _finish(store, layout, activate=not no_activate)
    _print_json(as_json, layout, steps, missing, built=not dry_run)


def _finish(store: Store, layout: source_build.Layout, *, activate: bool) -> None:
    echo = line_printer(to_stderr=True)
    if layout.spec.wheel:
        echo(f"The wheel is in {layout.target}. To install it: pip install {shell_word(layout.target)}/*.whl")
        return
    if activate:
        store.activate(f"builds/{layout.spec.name}", kind="libtorch")
    echo(f"libtorch is in {layout.target}{' and active' if activate else ''}.")
    echo(f"To free the disk space of the build: rm -r {shell_word(layout.work)}")


def _notes(archs: list[str]) -> list[str]:
    """Return a note if a published build supports all architectures."""
    gpus = [Gpu(0, "", "nvidia", toolchain.plain(arch)) for arch in archs]
    fitting = [one for one in builds.BUILDS if one.cuda and all(builds.supports(gpu, one) for gpu in gpus)]
    if not fitting:
        return []
    name = fitting[0].name
    return [
        f"the published build {name} supports all of these; compiling is not needed: fdl setup --build {name}"
    ]


def _missing(
    hardware: Hardware,
    archs: list[str],
    toolkits: list[toolchain.Toolkit],
    layout: source_build.Layout,
    *,
    check_network: bool,
) -> list[str]:
    """Return everything that prevents the build, each with a remedy."""
    found = toolchain.missing_tools(hardware)
    found += [toolchain.missing_compiler(archs, toolkits), toolchain.missing_disk(layout.cache)]
    source = layout.spec.source
    if source is not None:
        found.append(_missing_source(source))
    elif check_network and not any("git" in one.split()[0] for one in found if one):
        found.append(_missing_repository(layout))
    return [one for one in found if one]


def _missing_source(source: Path) -> str:
    for name in ("CMakeLists.txt", "requirements.txt", "torch/csrc", "third_party/fmt/CMakeLists.txt"):
        if not (source / name).exists():
            return (
                f"{source} has no {name}: it is not a checkout of PyTorch with its submodules. Get them: git "
                "submodule update --init --recursive"
            )
    return ""


def _missing_repository(layout: source_build.Layout) -> str:
    if layout.source.with_name(f"{layout.source.name}.done").is_file():
        return ""
    tag = f"refs/tags/v{layout.spec.version}"
    text, error = run_tool(["git", "ls-remote", source_build.REPOSITORY, tag])
    if error:
        return (
            f"the sources cannot be downloaded ({error}). Check the network, or pass a checkout: --source DIR"
        )
    return (
        ""
        if text
        else f"{source_build.REPOSITORY} has no tag v{layout.spec.version}: pass a release to --torch"
    )


def _print_json(
    as_json: bool, layout: source_build.Layout, steps: list[Any], missing: list[str], *, built: bool
) -> None:
    if not as_json:
        return
    spec = layout.spec
    plan = {
        "archs": [{"arch": arch.name, "origin": arch.origin} for arch in spec.archs],
        "arch_list": spec.arch_list,
        "cuda": spec.toolkit.version,
        "nvcc": str(spec.toolkit.nvcc),
        "jobs": spec.jobs,
        "commands": [list(step.command) for step in steps],
        "missing": missing,
        "path": str(layout.target),
        "built": built,
    }
    click.echo(json.dumps(plan))
