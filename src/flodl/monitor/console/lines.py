"""The lines of the console as styled text, independent of the output."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flodl.core.formats import format_bytes, format_duration

from ..metrics import format_value

# The parts of a line: a text and its style.
Line = list[tuple[str, str]]

_ENDS = {
    "finished": "training complete in",
    "stopped": "training stopped after",
    "failed": "training failed after",
}
_ALERTS = {"error": "bold red", "warning": "yellow"}


def escape(text: object) -> str:
    """Escape characters that would move the cursor or change colors: names may contain anything.

    >>> escape("loss\\x1b[31m")
    'loss\\\\x1b[31m'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def text_of(line: Line) -> str:
    """Return the text of a line without styles."""
    return "".join(text for text, _ in line)


def epoch_name(epoch: int, total_epochs: int) -> str:
    """Return the name of an epoch, counted from 1.

    >>> epoch_name(2, 10), epoch_name(2, 0)
    ('epoch  3/10', 'epoch 3')
    """
    if total_epochs <= 0:
        return f"epoch {epoch + 1}"
    return f"epoch {epoch + 1:>{len(str(total_epochs))}}/{total_epochs}"


def metrics_text(metrics: Mapping[str, Any], joiner: str = "=") -> str:
    """Return the metrics as one text.

    >>> metrics_text({"loss": 0.5, "note": "warm"})
    'loss=0.5000 note=warm'
    """
    return " ".join(f"{escape(name)}{joiner}{_format(value)}" for name, value in metrics.items())


def epoch_line(
    data: Mapping[str, Any], *, total_epochs: int, eta_s: float | None, gpus: Sequence[Mapping[str, Any]] = ()
) -> Line:
    """Return the line of a finished epoch.

    >>> gpu = {"vram_reserved_bytes": 2**31, "vram_total_bytes": 2**34, "util_pct": 82.0}
    >>> data = {"epoch": 2, "metrics": {"loss": 0.25}, "duration_s": 1.5}
    >>> text_of(epoch_line(data, total_epochs=10, eta_s=10.5, gpus=[gpu]))
    '  epoch  3/10  loss=0.2500  [1.5s  ETA 10.5s]  VRAM: 2.0 GB / 16.0 GB (82%)'
    """
    line = [(f"  {epoch_name(int(data['epoch']), total_epochs)}", "bold")]
    if data.get("metrics"):
        line.append((f"  {metrics_text(data['metrics'])}", ""))
    times = [format_duration(data["duration_s"])] if data.get("duration_s") is not None else []
    if eta_s is not None and total_epochs > int(data["epoch"]) + 1:
        times.append(f"ETA {format_duration(eta_s)}")
    if times:
        line.append((f"  [{'  '.join(times)}]", "dim"))
    if gpus:
        line.append((f"  {gpu_text(gpus)}", "dim"))
    return line


def progress_line(data: Mapping[str, Any], *, total_epochs: int, rest: Iterable[str]) -> Line:
    """Return the line for progress within an epoch, for a log file.

    >>> data = {"epoch": 2, "step": 450, "num_steps": 1000}
    >>> text_of(progress_line(data, total_epochs=10, rest=["loss=0.5000", "ETA 10s"]))
    '  epoch  3/10  step 450/1000 (45%)  loss=0.5000  ETA 10s'
    """
    parts = [epoch_name(int(data["epoch"]), total_epochs), steps_text(data), *rest]
    return [("  " + "  ".join(part for part in parts if part), "")]


def steps_text(data: Mapping[str, Any]) -> str:
    """Return the progress of an epoch; its length may be unknown."""
    step, num_steps = int(data["step"]), data.get("num_steps")
    return f"step {step}/{num_steps} ({100 * step // num_steps}%)" if num_steps else f"step {step}"


def gpu_text(gpus: Sequence[Mapping[str, Any]]) -> str:
    """Return the memory usage of the fullest GPU, and the mean utilization.

    >>> gpu_text([{"vram_used_bytes": 2**30, "vram_total_bytes": 2**34}, {"util_pct": 50.0}])
    'VRAM: 1.0 GB / 16.0 GB (50%, 2 GPUs)'
    """
    known = [gpu for gpu in gpus if gpu.get("vram_total_bytes")]
    fullest = max(known, key=lambda gpu: _memory_in_use(gpu) / gpu["vram_total_bytes"], default=None)
    utilization = [gpu["util_pct"] for gpu in gpus if gpu.get("util_pct") is not None]
    notes = [f"{statistics.fmean(utilization):.0f}%"] if utilization else []
    notes += [f"{len(gpus)} GPUs"] if len(gpus) > 1 else []
    text = "GPU:"
    if fullest is not None:
        text = f"VRAM: {format_bytes(_memory_in_use(fullest))} / {format_bytes(fullest['vram_total_bytes'])}"
    return f"{text} ({', '.join(notes)})" if notes else text


def alert_line(data: Mapping[str, Any], *, rank: int = 0) -> Line:
    """Return the line of an alert.

    >>> text_of(alert_line({"message": "loss is nan", "level": "error", "path": "head"}, rank=2))
    "  error (rank 2): at 'head': loss is nan"
    """
    level = str(data.get("level", "warning"))
    where = f"at '{data['path']}': " if data.get("path") else ""
    who = f" (rank {rank})" if rank else ""
    # A message may contain a traceback, which is read line by line.
    message = "\n".join(map(escape, f"{where}{data['message']}".splitlines()))
    return [(f"  {escape(level)}{who}: ", _ALERTS.get(level, "")), (message, "")]


def tier_line(tier: str, reason: str | None, gain: float | None = None) -> Line:
    """Return the line of a tier change, with its reason and its speedup over eager.

    >>> text_of(tier_line("captured", "equal to eager in 3 steps"))
    '  tier captured: equal to eager in 3 steps'
    >>> text_of(tier_line("captured", None, gain=3.21))
    '  tier captured, 3.2× as fast as eager'
    """
    faster = "" if gain is None else f", {gain:.1f}× as fast as eager"
    why = f": {escape(reason)}" if reason else ""
    return [(f"  tier {escape(tier)}{faster}{why}", "cyan")]


def note_line(data: Mapping[str, Any]) -> Line:
    """Return the line for a note from the training step, with what it is about.

    >>> text_of(note_line({"message": "it counts as 60 samples", "about": "samples"}))
    '  samples: it counts as 60 samples'
    """
    return [(f"  {escape(data.get('about') or 'note')}: {escape(data['message'])}", "cyan")]


def save_line(data: Mapping[str, Any]) -> Line:
    """Return the line of a saved file.

    >>> text_of(save_line({"path": "run/best.fdl", "reason": "best loss", "duration_s": 0.25}))
    '  saved: run/best.fdl (best loss, 250ms)'
    """
    notes = [escape(data["reason"])] if data.get("reason") else []
    notes += [format_duration(data["duration_s"])] if data.get("duration_s") is not None else []
    return [(f"  saved: {escape(data['path'])}" + (f" ({', '.join(notes)})" if notes else ""), "dim")]


def end_line(
    data: Mapping[str, Any], *, duration_s: float, metrics: Iterable[tuple[str, Mapping[str, Any]]]
) -> Line:
    """Return the last line of a run, with metrics and what they belong to, or "".

    >>> metrics = [("", {"loss": 0.5, "accuracy": 0.9})]
    >>> text_of(end_line({"status": "finished"}, duration_s=90.0, metrics=metrics))
    '  training complete in 1m 30s  | loss: 0.5000  accuracy: 0.9000'
    """
    status = str(data.get("status", "finished"))
    words = _ENDS.get(status, f"training {escape(status)} after")
    text = (
        f"  {words} {format_duration(duration_s)}"
        if duration_s is not None
        else f"  {words.rsplit(' ', 1)[0]}"
    )
    for where, values in metrics:
        named = [f"{escape(name)}: {_format(value)}" for name, value in values.items()]
        text += "  | " + "  ".join(([where] if where else []) + named)
    line = [(text, "bold red" if status == "failed" else "bold")]
    if data.get("message"):
        line.append((f"  {escape(data['message'])}", ""))
    return line


def _memory_in_use(gpu: Mapping[str, Any]) -> int:
    # Prefer what torch has reserved: other processes may use the same GPU.
    return int(gpu.get("vram_reserved_bytes") or gpu.get("vram_used_bytes") or 0)


def _format(value: Any) -> str:
    return format_value(value) if isinstance(value, int | float) else escape(value)
