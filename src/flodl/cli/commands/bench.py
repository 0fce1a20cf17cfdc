"""`fdl bench`: how fast a training step is on each tier, on this machine."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import flodl
from flodl.cli.options import talk_options
from flodl.core import log
from flodl.core.device import parse_device
from flodl.core.errors import FlodlError, SetupError
from flodl.core.files import write_atomic
from flodl.core.paths import suggestion

if TYPE_CHECKING:
    from flodl.engine.benchmark import Timing

BUSY_JITTER = 0.1
MOST_STEPS = 50
MEASURING_S = 20.0  # getting ready comes on top


@click.command("bench", context_settings={"show_default": True})
@click.argument("target", required=False)
@click.option(
    "--steps",
    type=click.IntRange(1),
    show_default="50, or fewer so that it ends within about a minute",
    help="Steps in a round.",
)
@click.option("--rounds", type=click.IntRange(1), default=7, help="Rounds; the tiers take turns in each.")
@click.option(
    "--tiers",
    metavar="NAMES",
    show_default="torch,eager,captured, and on a GPU compiled",
    help="What to compare: some of torch, eager, captured, compiled.",
)
@click.option("--device", help="Where to run: cpu, cuda, cuda:1. Without it, where the target puts it.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the numbers here.",
)
@talk_options
def command(
    target: str | None,
    steps: int | None,
    rounds: int,
    tiers: str | None,
    device: str | None,
    json_file: Path | None,
) -> None:
    """Measure a training step as plain torch runs it and on each tier of TrainStep.

    TARGET is a function, as package.module:function or file.py:function, that gives (model, optimizer,
    step_fn, batch). Without one, a small model of flodl's own is measured.

    On a CPU, torch, eager and captured are measured; compiled, which takes minutes to get ready there, only
    if --tiers names it. On a GPU all four are.
    """
    wanted = None if tiers is None else [name.strip() for name in tiers.split(",") if name.strip()]
    if wanted == []:
        raise SetupError("--tiers names nothing. Give some of torch, eager, captured, compiled.")
    if json_file is not None:
        _check_folder(json_file)
    if wanted is not None:
        _check_tiers(wanted)
    if device is not None:
        _check_device(device)
    function = None if target is None else _found(target)

    from flodl.engine import benchmark as measure

    place = device or _best_device()
    make = function or (lambda: measure.small_work(place))
    if wanted is None:
        # To compile on a CPU takes minutes, which nobody expects who only asks how fast a step is.
        wanted = ["torch", "eager", "captured", *(["compiled"] if place != "cpu" else [])]
    with _explained(target):
        if steps is None:
            steps = _fitting_steps(make, device, rounds * len(wanted))
        timings = measure.compare(make, wanted, steps=steps, rounds=rounds, device=device, say=_say)
    click.echo(_table(timings))
    skipped = [timing.rival for timing in timings if timing.report is not None and timing.report.skipped]
    if skipped:
        click.echo(
            f"The loss was not finite, so {' and '.join(skipped)} skipped updates that torch applied: "
            "these times compare different work."
        )
    if json_file is not None:
        facts = _facts(target, steps, rounds)
        text = json.dumps({**facts, "timings": [timing.to_dict() for timing in timings]}, indent=2)
        try:
            write_atomic(json_file, text + "\n")
        except OSError as error:
            raise SetupError(f"--json {json_file}: {error.strerror}. Name another file.") from None
        _say(f"written to {json_file}")


def _say(line: str) -> None:
    if log.enabled(log.Verbosity.NORMAL):
        click.echo(line, err=True)


def _check_folder(file: Path) -> None:
    """Refuse a file that could not be written when everything is measured; no folder is made for it."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise SetupError(f"--json {file}: there is no folder {folder}. Make it, or name another file.")
    if not os.access(folder, os.W_OK):
        raise SetupError(f"--json {file}: {folder} cannot be written to. Name another file.")


def _check_tiers(names: Sequence[str]) -> None:
    from flodl.engine.benchmark import RIVALS

    for name in names:
        if name not in RIVALS:
            hint = suggestion(name, RIVALS, known_as="tiers")
            raise SetupError(f"--tiers: there is no tier {name!r}. {hint}")


def _check_device(name: str) -> None:
    """Refuse a device that torch does not know, or that this machine does not have."""
    import torch

    device = parse_device(
        name,
        error=SetupError,
        advice="Use cpu, cuda, or cuda:1 for the second GPU.",
        advice_without_cuda="`fdl diagnose` says more.",
        label=f"--device {name}",
    )
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise SetupError(f"--device {name} cannot be used: {first}") from error


@contextmanager
def _explained(target: str | None) -> Iterator[None]:
    """Turn what a target, its model or its step raises into one line that names it."""
    try:
        yield
    except FlodlError:
        raise
    except Exception as error:
        if target is None:
            raise
        first = f"{type(error).__name__}: {str(error).strip()}".split("\n")[0].rstrip(".: ")
        raise SetupError(
            f"{target} raised {first}. It must give (model, optimizer, step_fn, batch) that fit together; "
            "-vv shows where."
        ) from error


def _fitting_steps(make: Callable[[], Any], device: str | None, num_turns: int) -> int:
    """Give how many steps of a round fit into the time, from a step that is measured first."""
    from flodl.engine import benchmark as measure

    first = measure.compare(make, ["torch"], steps=1, rounds=1, device=device)[0].median_s
    steps = max(1, min(MOST_STEPS, int(MEASURING_S / max(first * num_turns, 1e-9))))
    total = first * steps * num_turns
    _say(f"a step takes about {first * 1e3:.2g} ms: {steps} in a round, about {total:.0f} s")
    return steps


def _found(target: str) -> Callable[[], Any]:
    """Import the function that a target names."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise SetupError(f"{target!r} is no target. Write package.module:function or file.py:function.")
    module = _from_file(Path(place)) if place.endswith(".py") else _from_path(place)
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise SetupError(f"{place} has no function {name!r}. {suggestion(name, known, known_as='functions')}")
    made: Callable[[], Any] = function
    return made


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise SetupError(f"there is no file {path}. Give the path from {Path.cwd()}.")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # As for a script: what lies beside it can be imported.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SetupError(
            f"{path} cannot be imported: {type(error).__name__}: {error}. -vv shows where."
        ) from error
    return module


def _from_path(name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise SetupError(f"{name} cannot be imported: {error}. -vv shows where.") from error
        raise SetupError(f"there is no module {name!r} to be found from {Path.cwd()}.") from None
    except Exception as error:
        raise SetupError(
            f"{name} cannot be imported: {type(error).__name__}: {error}. -vv shows where."
        ) from error


def _best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _table(timings: Sequence[Timing]) -> str:
    """Lay the timings out, the first one being what the others are compared with."""
    base = timings[0].median_s
    rows = [
        [
            timing.rival,
            f"{timing.median_s * 1e3:.3f}",
            f"{timing.jitter:.1%}",
            f"{base / timing.median_s:.2f}×",
            f"{timing.setup_s:.1f} s",
        ]
        for timing in timings
    ]
    header = ["", "ms a step", "jitter", f"over {timings[0].rival}", "to get ready"]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:]))]).rstrip()
        for line in [header, *rows]
    ]
    busy = max(timing.jitter for timing in timings) > BUSY_JITTER
    caution = ["", "The machine was busy: differences below the jitter mean nothing."] if busy else []
    return "\n".join([*lines, "", *map(_why, timings), *caution])


def _why(timing: Timing) -> str:
    instead = "" if timing.ran == timing.rival else f"ran as {timing.ran}: "
    return f"{timing.rival}: {instead}{timing.reason}"


def _facts(target: str | None, steps: int, rounds: int) -> dict[str, Any]:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "target": target or "built-in",
        "steps": steps,
        "rounds": rounds,
        "flodl": flodl.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "gpu": gpu,
        "threads": torch.get_num_threads(),
    }
