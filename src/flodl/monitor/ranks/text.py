"""The report of several ranks in words and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEADS = (
    "rank", "device", "host", "state", "updates", "samples", "share", "samples/s", "computing", "reducing",
    "idle", "of it waiting", "sent",
)  # fmt: skip


def facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the numbers of the whole run, each with its name."""
    totals, rows = found["totals"], found["ranks"]
    divergence = totals.get("divergence")
    return [
        ("ranks", str(len(rows))),
        ("policy", str(found.get("policy", ""))),
        ("syncs", str(totals.get("syncs", 0))),
        ("idle", percent(sum(map(idle_s, rows)), sum(map(whole_s, rows)))),
        ("waiting", percent(_sum(rows, "wait_s"), sum(map(whole_s, rows)))),
        ("reducing", percent(_sum(rows, "reduce_s"), sum(map(whole_s, rows)))),
        ("sent", num_bytes(_sum(rows, "num_bytes"))),
        ("divergence", "not measured" if divergence is None else f"{divergence:.3g}"),
        ("coverage", coverage(totals.get("coverage"))),
    ]


def rank_rows(found: Mapping[str, Any]) -> tuple[Sequence[str], list[list[str]]]:
    """Return a table: the names of its columns, and a row of texts for each rank."""
    samples = _sum(found["ranks"], "samples")
    return HEADS, [
        [
            str(row["rank"]),
            row["device"],
            row["host"],
            f"lost: {row['lost']}" if row["lost"] else row["state"],
            f"{row['updates']:.0f}",
            f"{row['samples']:.0f}",
            percent(row["samples"], samples),
            f"{speed(row):.0f}",
            percent(row["train_s"], whole_s(row)),
            percent(row["reduce_s"], whole_s(row)),
            percent(idle_s(row), whole_s(row)),
            percent(row["wait_s"], whole_s(row)),
            num_bytes(row["num_bytes"]),
        ]
        for row in found["ranks"]
    ]


def idle_s(row: Mapping[str, Any]) -> float:
    """The seconds in which a rank neither computed nor reduced."""
    return float(row["wait_s"] + row["pause_s"])


def whole_s(row: Mapping[str, Any]) -> float:
    """The seconds since the first work of a rank."""
    return float(row["train_s"] + row["reduce_s"] + row["wait_s"] + row["pause_s"])


def speed(row: Mapping[str, Any]) -> float:
    """Committed samples per second of computing."""
    return row["samples"] / row["train_s"] if row["train_s"] else 0.0


def percent(part: float, whole: float) -> str:
    """
    >>> percent(1, 3), percent(0, 0)
    ('33.3%', '0.0%')
    """
    return f"{part / whole if whole else 0.0:.1%}"


def num_bytes(count: float) -> str:
    """
    >>> num_bytes(512), num_bytes(3 << 20)
    ('512 B', '3.0 MB')
    """
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "KB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.1f} {unit}"
    return f"{count:.0f} B"


def coverage(found: Any) -> str:
    """Return in words which samples were trained.

    >>> coverage({"num_samples": 512, "epochs": 3, "partial": 64, "missing": 0, "repeated": 0})
    '3 epochs, each sample once, and 64 of 512 samples of the next one'
    """
    if not isinstance(found, dict):
        return "unknown"
    epochs, partial = found.get("epochs", 0), found.get("partial", 0)
    parts = [f"{epochs} epoch{'' if epochs == 1 else 's'}"] if epochs or not partial else []
    wrong = [f"{found[name]} samples {name}" for name in ("missing", "repeated") if found.get(name)]
    if epochs:
        parts += wrong or ["each sample once"]
    if partial:
        of = f"{partial} of {found.get('num_samples')} samples"
        parts.append(f"and {of} of the next one" if epochs else f"{of} of an epoch")
    return ", ".join(parts)


def _sum(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return sum(float(row[name]) for row in rows)
