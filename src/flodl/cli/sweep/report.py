"""The results of a sweep: a line for each run, a table, a CSV file and JSON data."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flodl.cli.args.parameter import format_value
from flodl.core.files import write_atomic
from flodl.core.formats import format_duration, format_metric
from flodl.core.metric_modes import Mode

from .trials import Outcome, Trial

TABLE = "table.csv"


def describe_values(values: dict[str, Any]) -> str:
    """Return the values of a run as text.

    >>> describe_values({"lr": 0.01, "hidden": 64})
    'lr=0.01 hidden=64'
    """
    return " ".join(f"{name}={_short(value)}" for name, value in values.items())


def sorted_by_result(outcomes: Sequence[Outcome], metric: str, mode: Mode) -> list[Outcome]:
    """Return the runs with the best first; those without a result come last, by number."""
    sign = 1 if mode == "min" else -1

    def key(outcome: Outcome) -> tuple[bool, float, int]:
        result = outcome.result(metric)
        return (result is None, sign * (result or 0.0), outcome.trial.number)

    return sorted(outcomes, key=key)


def table_text(outcomes: Sequence[Outcome], metric: str, mode: Mode) -> str:
    """Return the results as aligned columns, best first."""
    names = list(dict.fromkeys(name for outcome in outcomes for name in outcome.trial.values))
    rows = [["run", *names, f"best {metric or 'metric'}", "epoch", "last", "time", "state"]]
    for outcome in sorted_by_result(outcomes, metric, mode):
        found = outcome.metrics.get(metric, {})
        rows.append(
            [
                outcome.trial.folder_name,
                *(_short(outcome.trial.values.get(name, "—")) for name in names),
                _number(found.get("best")),
                _short(found.get("epoch") or found.get("step") or "—"),
                _number(found.get("last")),
                "—" if outcome.elapsed_s is None else format_duration(outcome.elapsed_s),
                _state(outcome.trial),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )


def write_table(folder: Path, outcomes: Sequence[Outcome]) -> Path:
    """Write every run with its values and all of its metrics as table.csv."""
    values = list(dict.fromkeys(name for outcome in outcomes for name in outcome.trial.values))
    metrics = list(dict.fromkeys(name for outcome in outcomes for name in outcome.metrics))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    heads = [head for name in metrics for head in (f"best {name}", f"last {name}")]
    table.writerow(["run", "state", "time_s", *values, *heads])
    for outcome in outcomes:
        trial = outcome.trial
        cells = [outcome.metrics.get(name, {}).get(which) for name in metrics for which in ("best", "last")]
        row = [trial.folder_name, trial.state, outcome.elapsed_s]
        row += [format_value(trial.values[name]) if name in trial.values else "" for name in values]
        table.writerow(["" if cell is None else cell for cell in [*row, *cells]])
    return write_atomic(folder / TABLE, text.getvalue())


def as_json(folder: Path, outcomes: Sequence[Outcome], metric: str, mode: Mode) -> dict[str, Any]:
    """Return the results as data, best first."""
    runs = [
        {
            "run": outcome.trial.folder_name,
            "folder": str(outcome.folder),
            "state": outcome.trial.state,
            "exit_code": outcome.trial.exit_code,
            "signal": outcome.trial.signal,
            "values": outcome.trial.values,
            "result": outcome.result(metric),
            "elapsed_s": outcome.elapsed_s,
            "metrics": outcome.metrics,
        }
        for outcome in sorted_by_result(outcomes, metric, mode)
    ]
    return {"folder": str(folder), "metric": metric or None, "mode": mode, "runs": runs}


def _state(trial: Trial) -> str:
    return f"{trial.state} ({trial.signal})" if trial.state == "failed" and trial.signal else trial.state


def _number(value: Any) -> str:
    return format_metric(float(value)) if isinstance(value, (int, float)) else "—"


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else format_value(value)
