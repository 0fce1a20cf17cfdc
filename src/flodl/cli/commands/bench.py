"""`fdl bench`: measure a training step on each tier."""

from __future__ import annotations

import importlib
import importlib.util
import json
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

import flodl
from flodl.cli.options import GivenPath, check_folder, output_options
from flodl.core import log
from flodl.core.device import parse_device
from flodl.core.errors import FlodlError, SetupError
from flodl.core.files import expand_user, write_atomic
from flodl.core.paths import suggestion

if TYPE_CHECKING:
    from flodl.engine.benchmark import Timing

BUSY_JITTER = 0.1
MAX_STEPS = 50
MEASURE_S = 20.0  # excluding setup


@click.command("bench", context_settings={"show_default": True})
@click.argument("target", required=False)
@click.option(
    "--steps",
    type=click.IntRange(1),
    show_default="50, or fewer to finish within about a minute",
    help="Steps per round.",
)
@click.option("--rounds", type=click.IntRange(1), default=7, help="Rounds; each round runs every tier.")
@click.option(
    "--tiers",
    metavar="NAMES",
    show_default="torch,eager,captured, and on a GPU compiled",
    help="Tiers to compare: torch, eager, captured, compiled.",
)
@click.option("--device", help="Device: cpu, cuda, cuda:1. By default, the device that the target uses.")
@click.option(
    "--json",
    "json_file",
    type=GivenPath(dir_okay=False),
    help="Also write the numbers to this file.",
)
@output_options
def command(
    target: str | None,
    steps: int | None,
    rounds: int,
    tiers: str | None,
    device: str | None,
    json_file: Path | None,
) -> None:
    """Measure a training step with plain torch and on each tier of TrainStep.

    TARGET is a function, written as package.module:function or file.py:function, that returns (model,
    optimizer, step_fn, batch). Without it, a small built-in model is measured. This executes the module.

    On a CPU, torch, eager and captured are measured; compiled, which takes minutes to compile there, only
    if listed in --tiers. On a GPU, all four are measured.
    """
    names = None if tiers is None else [name.strip() for name in tiers.split(",") if name.strip()]
    if names == []:
        raise SetupError("--tiers is empty. Choose from torch, eager, captured, compiled.")
    if json_file is not None:
        check_folder("--json", json_file)
    if names is not None:
        _check_tiers(names)
    if device is not None:
        _check_device(device)
    function = None if target is None else _load_target(target)

    from flodl.engine import benchmark

    target_device = device or _default_device()
    make = function or (lambda: benchmark.small_work(target_device))
    if names is None:
        # Compiling on a CPU takes minutes; users who ask how fast a step is do not expect that.
        names = ["torch", "eager", "captured", *(["compiled"] if target_device != "cpu" else [])]
    with _errors_explained(target):
        if steps is None:
            steps = _steps_that_fit(make, device, rounds * len(names))
        timings = benchmark.compare(make, names, steps=steps, rounds=rounds, device=device, say=_echo)
    click.echo(_table(timings))
    skipped = [timing.rival for timing in timings if timing.report is not None and timing.report.skipped]
    if skipped:
        click.echo(
            f"The loss was not finite, so {' and '.join(skipped)} skipped updates that torch applied: "
            "the times compare different work."
        )
    if json_file is not None:
        facts = _facts(target, steps, rounds)
        text = json.dumps({**facts, "timings": [timing.to_dict() for timing in timings]}, indent=2)
        try:
            write_atomic(json_file, text + "\n")
        except OSError as error:
            raise SetupError(f"--json {json_file}: {error.strerror}. Choose a different file.") from None
        _echo(f"written to {json_file}")


def _echo(line: str) -> None:
    if log.enabled(log.Verbosity.NORMAL):
        click.echo(line, err=True)


def _check_tiers(names: Sequence[str]) -> None:
    from flodl.engine.benchmark import RIVALS

    for name in names:
        if name not in RIVALS:
            hint = suggestion(name, RIVALS, known_as="tiers")
            raise SetupError(f"--tiers: there is no tier {name!r}. {hint}")


def _check_device(name: str) -> None:
    """Raise if torch does not know the device or this machine does not have it."""
    import torch

    device = parse_device(
        name,
        error=SetupError,
        advice="Use cpu, cuda, or cuda:1 for the second GPU.",
        advice_without_cuda="`fdl diagnose` shows details.",
        label=f"--device {name}",
    )
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise SetupError(f"--device {name} cannot be used: {first}") from error


@contextmanager
def _errors_explained(target: str | None) -> Iterator[None]:
    """Turn an exception of the target, its model or its step into one line that names the target."""
    try:
        yield
    except Exception as error:
        # An error of torch that a step has explained does not name the target yet.
        is_explained = isinstance(error, FlodlError) and isinstance(error, RuntimeError)
        if target is None or (isinstance(error, FlodlError) and not is_explained):
            raise
        first = f"{type(error).__name__}: {str(error).strip()}".split("\n")[0].rstrip(".: ")
        raise SetupError(
            f"{target} raised {first}. It must return (model, optimizer, step_fn, batch) that fit together; "
            "-vv shows the traceback."
        ) from error


def _steps_that_fit(make: Callable[[], Any], device: str | None, num_rounds: int) -> int:
    """Measure one step, and return how many steps per round fit into the time limit."""
    from flodl.engine import benchmark

    first = benchmark.compare(make, ["torch"], steps=1, rounds=1, device=device)[0].median_s
    steps = max(1, min(MAX_STEPS, int(MEASURE_S / max(first * num_rounds, 1e-9))))
    total = first * steps * num_rounds
    _echo(f"a step takes about {first * 1e3:.2g} ms: {steps} per round, about {total:.0f} s")
    return steps


def _load_target(target: str) -> Callable[[], Any]:
    """Import the function of a target."""
    source, _, name = target.rpartition(":")
    if not source or not name:
        raise SetupError(f"{target!r} is not a target. Write package.module:function or file.py:function.")
    module = _import_file(expand_user(source)) if source.endswith(".py") else _import_module(source)
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise SetupError(
            f"{source} has no function {name!r}. {suggestion(name, known, known_as='functions')}"
        )
    return cast("Callable[[], Any]", function)


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise SetupError(f"there is no file {path}. Use a path relative to {Path.cwd()}.")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # As for a script, modules next to it can be imported.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    try:
        with _own_arguments(path):
            spec.loader.exec_module(module)
    except Exception as error:
        raise _not_imported(path, f"{type(error).__name__}: {error}") from error
    return module


@contextmanager
def _own_arguments(script: Path) -> Iterator[None]:
    """Let a script that parses its arguments read its own, of which there are none, not those of fdl."""
    given = sys.argv
    sys.argv = [str(script)]
    try:
        yield
    finally:
        sys.argv = given


def _import_module(name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        with _own_arguments(Path(name)):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise _not_imported(name, str(error)) from error
        raise SetupError(f"the module {name!r} was not found from {Path.cwd()}.") from None
    except Exception as error:
        raise _not_imported(name, f"{type(error).__name__}: {error}") from error


def _not_imported(source: Path | str, cause: str) -> SetupError:
    """Return the error for a file or module that raised while it was imported."""
    return SetupError(f"{source} cannot be imported: {cause.rstrip().rstrip('.')}. -vv shows the traceback.")


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _table(timings: Sequence[Timing]) -> str:
    """Format the timings as a table, relative to the first one."""
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
    header = ["", "ms/step", "jitter", f"vs {timings[0].rival}", "setup"]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:]))]).rstrip()
        for line in [header, *rows]
    ]
    busy = max(timing.jitter for timing in timings) > BUSY_JITTER
    warning = ["", "The machine was busy: differences smaller than the jitter are noise."] if busy else []
    return "\n".join([*lines, "", *map(_reason, timings), *warning])


def _reason(timing: Timing) -> str:
    actual = "" if timing.ran == timing.rival else f"ran as {timing.ran}: "
    return f"{timing.rival}: {actual}{timing.reason}"


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
