"""The report of the suite, in Markdown and as a page of HTML."""

from __future__ import annotations

import html
import statistics
from collections import defaultdict
from typing import Any

from .recipes import RECIPES
from .task import OURS
from .timeline import timeline

Runs = dict[str, dict[str, Any]]
HEADER = [
    "policy",
    "seeds",
    "quality",
    "95 % interval",
    "vs solo",
    "seconds",
    "× solo",
    "syncs",
    "waiting",
    "MB",
]
# Two-sided 95 % quantiles of Student's t, by degrees of freedom.
T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


def t_interval(values: list[float]) -> tuple[float, float] | None:
    """Return the interval of the mean over seeds; None for fewer than two.

    >>> t_interval([0.5]) is None
    True
    """
    num = len(values)
    if num < 2:
        return None
    half = T.get(num - 1, 1.96) * statistics.stdev(values) / num**0.5
    middle = statistics.fmean(values)
    return middle - half, middle + half


def groups_of(runs: Runs) -> dict[tuple[str, str, str], dict[str, list[dict[str, Any]]]]:
    """Return runs by model, epochs and device, then by policy, backend and ranks."""
    found: dict[tuple[str, str, str], dict[str, list[dict[str, Any]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for run in runs.values():
        policy = run["policy"]
        if policy != "solo":
            backend = f", {run['backend']}" if policy in OURS else ""
            policy += f"{backend}, {run['ranks']} ranks"
        if len(set(run.get("shares", ()))) > 1:
            policy += " " + ":".join(map(str, run["shares"]))
        epochs = f"{run['epochs']} epochs" + (f" of {run['limit']} batches" if run.get("limit") else "")
        found[run["model"], epochs, run["device"]][policy].append(run)
    return found


def rows_of(policies: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """Return a row per policy; differences from solo are over the seeds that both have."""
    solo = {run["seed"]: run for run in policies.get("solo", [])}
    rows = []
    for policy in sorted(policies, key=lambda name: (name != "solo", name)):
        runs = policies[policy]
        qualities = [run["quality"] for run in runs]
        limits = t_interval(qualities)
        pairs = [(run, solo[run["seed"]]) for run in runs if run["seed"] in solo]
        differences = [run["quality"] - base["quality"] for run, base in pairs]
        speedups = [base["seconds"] / run["seconds"] for run, base in pairs]
        rows.append(
            [
                policy,
                str(len(runs)),
                f"{statistics.fmean(qualities):.4f}",
                "—" if limits is None else f"{limits[0]:.4f} to {limits[1]:.4f}",
                f"{statistics.fmean(differences):+.4f}" if pairs and policy != "solo" else "—",
                f"{statistics.median(run['seconds'] for run in runs):.1f}",
                f"{statistics.median(speedups):.2f}" if pairs and policy != "solo" else "—",
                _median(runs, "syncs", "{:.0f}"),
                _median(runs, "idle", "{:.1%}"),
                _median(runs, "num_bytes", "{:.1f}", 1e-6),
            ]
        )
    return rows


def _median(runs: list[dict[str, Any]], name: str, form: str, scale: float = 1.0) -> str:
    values = [run[name] for run in runs if run.get(name) is not None]
    return form.format(scale * statistics.median(values)) if values else "—"


def titles(runs: Runs) -> list[tuple[str, str, list[list[str]]]]:
    """Return the title, a sentence and the rows of each table."""
    found = []
    for (model, epochs, device), policies in sorted(groups_of(runs).items()):
        recipe = RECIPES[model]
        better = "higher" if recipe.higher_is_better else "lower"
        note = f"Quality is the {recipe.metric} on all test samples ({better} is better)"
        if recipe.reference is not None:
            note += f"; published: {recipe.reference} after {recipe.epochs} epochs"
        found.append((f"{model}, {epochs}, {device}", note + ".", rows_of(policies)))
    return found


def markdown(runs: Runs, machine: dict[str, Any]) -> str:
    lines = ["# Validation suite", "", _facts(machine), ""]
    for title, note, rows in titles(runs):
        lines += [f"## {title}", "", note, "", "| " + " | ".join(HEADER) + " |"]
        lines += ["| " + " | ".join("---" for _ in HEADER) + " |"]
        lines += ["| " + " | ".join(row) + " |" for row in rows] + [""]
    return "\n".join(lines)


STYLE = (
    "body{font:15px/1.5 system-ui;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}"
    "td,th{padding:.25rem .75rem;border-bottom:1px solid #ccc;text-align:right}"
    "td:first-child,th:first-child{text-align:left}"
)


def page(runs: Runs, machine: dict[str, Any]) -> str:
    parts = [f"<!doctype html><meta charset=utf-8><title>Validation suite</title><style>{STYLE}</style>"]
    parts.append(f"<h1>Validation suite</h1><p>{html.escape(_facts(machine))}</p>")
    for title, note, rows in titles(runs):
        head = "".join(f"<th>{html.escape(name)}</th>" for name in HEADER)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
        )
        parts.append(f"<h2>{html.escape(title)}</h2><p>{html.escape(note)}</p>")
        parts.append(f"<table><tr>{head}</tr>{body}</table>")
    parts.append(f"<h2>Quality by epoch</h2>{''.join(map(curve, _sorted(runs)))}")
    with_slices = [runs[key] for key in sorted(runs) if runs[key].get("timeline") and not runs[key]["seed"]]
    parts.append(f"<h2>Timelines</h2>{''.join(map(timeline, with_slices))}")
    return "\n".join(parts) + "\n"


def _sorted(runs: Runs) -> list[dict[str, Any]]:
    return [runs[key] for key in sorted(runs) if len(runs[key]["curve"]) > 1]


def curve(run: dict[str, Any]) -> str:
    """Return a small picture of the quality of one run, epoch by epoch."""
    values = run["curve"]
    low, high = min(values), max(values)
    span = high - low or 1.0
    points = " ".join(
        f"{4 + 232 * index / (len(values) - 1):.1f},{44 - 40 * (value - low) / span:.1f}"
        for index, value in enumerate(values)
    )
    name = f"{run['model']}, {run['policy']}, seed {run['seed']}: {values[0]:.4f} to {values[-1]:.4f}"
    line = f'<polyline points="{points}" fill="none" stroke="#26c" stroke-width="2"/>'
    return (
        f"<figure><svg width=240 height=48>{line}</svg><figcaption>{html.escape(name)}</figcaption></figure>"
    )


def _facts(machine: dict[str, Any]) -> str:
    shown = ("date", "commit", "torch", "cpu", "gpu")
    return ", ".join(f"{name} {machine[name]}" for name in shown if name in machine)
