"""`fdl launch`: run a script on several ranks."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from pathlib import Path

import click

from flodl.cli.execution.launched_script import check_options_after
from flodl.cli.options import GivenPath, output_options
from flodl.core import log
from flodl.core.environment import LAUNCH, LAUNCH_USED
from flodl.core.errors import SetupError
from flodl.distributed.placement import ENGINES, Placement, parse_ranks
from flodl.distributed.placement.commands import Launch, plan_launch

_ONE_OF_THEM = "Pass one of them: --ranks 2, or --devices cuda:0,cuda:1."
_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.command("launch", context_settings=_SETTINGS)
@click.option("--devices", metavar="LIST", help="One rank per device: cuda:0,cuda:1 or cpu,cpu.")
@click.option("--ranks", metavar="N", help="Number of ranks (with torchrun, per host), or MIN:MAX with Ray.")
@click.option(
    "--on", type=click.Choice(ENGINES), default="local", show_default=True, help="How to start the ranks."
)
@click.option(
    "--address", metavar="HOST:PORT", help="Address of the Ray cluster or of the torchrun rendezvous."
)
@click.option("--hosts", metavar="N", help="Number of hosts for torchrun, or MIN:MAX.")
@click.option(
    "--restarts", type=click.IntRange(0), help="Maximum number of restarts with torchrun. Default: 3."
)
@click.option("--explain", is_flag=True, help="Show what would be started, without starting it.")
@click.option("--json", "as_json", is_flag=True, help="Like --explain, as one JSON object.")
@output_options
@click.argument("script", type=GivenPath())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    devices: str | None,
    ranks: str | None,
    on: str,
    address: str | None,
    hosts: str | None,
    restarts: int | None,
    explain: bool,
    as_json: bool,
    script: Path,
    arguments: tuple[str, ...],
) -> int:
    """Run SCRIPT on several ranks. A Trainer in it that sets no device trains on all of them.

    The script runs once, in the supervisor process. Everything after SCRIPT is passed to it. If no Trainer
    used the ranks, for example because the script has a loop of its own with TrainStep, a warning says so.

    local starts one process per rank on this machine. ray places ranks on a running Ray cluster: survivors
    continue when a rank is lost, and ranks join when nodes appear. torchrun starts ranks on the hosts that
    run this command with the same --address; it restarts all of them after a loss, and the run resumes.
    """
    if not script.is_file():
        raise SetupError(f"script {script} not found. Pass the path of a Python file.")
    if devices is None and ranks is None:
        raise SetupError(_neither(script, arguments))
    check_options_after(script, arguments)
    placement = _placement(on, devices, ranks, address or "")
    launch = plan_launch(placement, [str(script), *arguments], hosts=hosts, restarts=restarts)
    if explain or as_json:
        _show(launch, as_json=as_json)
        return 0
    _check_cuda(placement)
    with tempfile.TemporaryDirectory(prefix="fdl-launch-") as folder:
        used = Path(folder) / "used"
        code = _run(launch, used)
        if code == 0 and not used.exists() and "--help" not in arguments:
            log.warn(
                "no Trainer in %s used the %s: the script ran once, in one process. fdl launch is for "
                "trainer.fit; a loop of your own with TrainStep trains on one device.",
                script,
                _ranks_of(placement),
            )
    return code


def _run(launch: Launch, used: Path) -> int:
    """Run what was planned; a Trainer creates the file `used`."""
    if launch.in_actor:
        from flodl.distributed.placement.ray_program import run_on_ray

        return run_on_ray(launch.command, launch.placement, {LAUNCH_USED: str(used)})
    from flodl.cli.execution.process import call

    variables = {**launch.variables, LAUNCH: launch.placement.to_json(), LAUNCH_USED: str(used)}
    return call(launch.command, cwd=Path.cwd(), **variables)


def _ranks_of(placement: Placement) -> str:
    """Return the ranks of a launch in words: "2 ranks", or a range."""
    least, most = (placement.start_ranks, placement.max_ranks)
    return f"{least}:{most} ranks" if least != most else f"{most} rank{'s' if most > 1 else ''}"


def _neither(script: Path, arguments: tuple[str, ...]) -> str:
    """Return the error for a launch without ranks: their option may follow the script, which receives it."""
    after = next((word for word in arguments if word.partition("=")[0] in ("--devices", "--ranks")), None)
    if after is None:
        return f"neither --devices nor --ranks is given. {_ONE_OF_THEM}"
    return (
        f"{after.partition('=')[0]} is after {script}, so it is passed to the script. Options of fdl launch "
        f"come before the script: fdl launch --ranks 2 {script}."
    )


def _placement(on: str, devices: str | None, ranks: str | None, address: str) -> Placement:
    if devices is not None and ranks is not None:
        raise SetupError(f"--devices and --ranks are mutually exclusive. {_ONE_OF_THEM}")
    if devices is not None:
        names = tuple(name.strip() for name in devices.split(",") if name.strip())
        if not names:
            raise SetupError("--devices is empty. Write for example --devices cuda:0,cuda:1.")
        if devices.strip().isdecimal():
            raise SetupError(
                f"--devices {devices.strip()} is not a device. Pass names, such as --devices cuda:0,cuda:1; "
                f"for a number of ranks, use --ranks {devices.strip()}."
            )
        return Placement(on=on, devices=names, address=address)
    assert ranks is not None
    return Placement(on=on, ranks=parse_ranks(ranks), address=address)


def _check_cuda(placement: Placement) -> None:
    """Raise if this machine lacks a CUDA device that was named; the ranks of Ray may be on other machines.

    torch is asked in another process: in this one, it would keep its memory until the ranks end.
    """
    indices = [int(name.partition(":")[2] or 0) for name in placement.devices if name.startswith("cuda")]
    if not indices or placement.on == "ray":
        return
    from flodl.cli.machine.torch_facts import query_torch

    facts = query_torch(sys.executable)
    if "error" in facts:
        return  # the script shows it
    given, most = f"--devices {','.join(placement.devices)}", len(facts["gpus"])
    if not most:
        has_cuda = facts["cuda"] or facts["hip"]
        why = f"torch {facts['version']} {'finds no CUDA device' if has_cuda else 'is built without CUDA'}"
        cpus = ",".join(["cpu"] * len(placement.devices))
        raise SetupError(f"{given}: {why}. Write --devices {cpus}, or --ranks {len(placement.devices)}.")
    if max(indices) >= most:
        raise SetupError(f"{given}: the CUDA devices of this machine are 0 to {most - 1}.")


def _show(launch: Launch, *, as_json: bool) -> None:
    environment = {**launch.variables, LAUNCH: launch.placement.to_json()}
    if as_json:
        facts = {"on": launch.placement.on, "command": launch.command, "starts": launch.starts}
        click.echo(json.dumps({**facts, "environment": environment}))
        return
    for line in launch.starts:
        click.echo(line)
    words = ["python" if word == sys.executable else word for word in launch.command]
    assigned = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    click.echo(f"\n{assigned} \\\n  {shlex.join(words)}")
