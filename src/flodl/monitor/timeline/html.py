"""A timeline as one self-contained page, without network access; data is shown only as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flodl.core.pages import Page, embedded

from .gaps import idle_gaps
from .record import OTHER, Record, Sample
from .tables import summary
from .verdict import verdict

PAGE = Page(
    body="monitor/timeline/page/timeline.html",
    styles=("core/pages/sheet.css", "monitor/timeline/page/timeline.css"),
    scripts=tuple(f"monitor/timeline/page/{name}.js" for name in ("lane", "lists", "timeline")),
)
# The order of the stacked areas, from bottom to top: work first, then waits.
_PHASE_ORDER = ("step", "evaluate", "data", "sync", "save")
_GIB = 1024**3


def page(record: Record, *, title: str = "Timeline") -> str:
    """Return an interactive HTML page.

    >>> text = page(Record((Sample(0.1, {"</script>": 0.1}),)), title="<b>run</b>")
    >>> "&lt;b&gt;run&lt;/b&gt;" in text, '"\\\\u003c/script>"' in text
    (True, True)
    """
    return PAGE.text(title=title, data=embedded(page_data(record)))


def page_data(record: Record) -> dict[str, Any]:
    """Return what the page draws: lanes of lines over time, marks, gaps, the verdict."""
    found = verdict(record)
    totals = summary(record)
    gaps = [gap for device in sorted(record.devices) for gap in idle_gaps(record, device)]
    return {
        "verdict": {"bound": found.bound, "line": found.line},
        "times": [round(sample.time_s, 4) for sample in record.samples],
        "lanes": [lane for lane in _lanes(record) if any(_has_values(line) for line in lane["lines"])],
        "marks": [
            {
                "start": round(mark.time_s, 4),
                "length": round(mark.duration_s, 4),
                "kind": mark.kind,
                "label": mark.label,
            }
            for mark in record.marks
        ],
        "gaps": [
            {"start": gap.start_s, "end": gap.end_s, "device": gap.device, "cause": gap.cause} for gap in gaps
        ],
        "facts": {
            "duration_s": totals["duration_s"],
            "num_steps": totals["num_steps"],
            "num_samples": totals["num_samples"],
            "num_dropped": record.num_dropped,
        },
    }


def _lanes(record: Record) -> Iterable[dict[str, Any]]:
    samples = record.samples
    for device, name in sorted(record.devices.items()):
        memory, limit = _gpu(samples, device, "vram_used_bytes"), _gpu(samples, device, "vram_total_bytes")
        lines = [
            _line("busy", _gpu(samples, device, "util_pct"), fill=True),
            _line("memory", _shares(memory, limit)),
        ]
        yield {
            "title": f"GPU {device}",
            "note": name,
            "unit": "%",
            "top": 100,
            "device": device,
            "lines": lines,
        }
    yield {
        "title": "Where the time goes",
        "note": "of the host",
        "unit": "%",
        "top": 100,
        "stacked": True,
        "lines": _phase_lines(samples),
    }
    yield {
        "title": "Processor",
        "note": "all cores in total; the process in percent of one core",
        "unit": "%",
        "lines": [
            _line("all", _each(samples, lambda sample: sample.cpu_pct), fill=True),
            _line("process", _each(samples, lambda sample: sample.process_cpu_pct)),
        ],
    }
    yield {
        "title": "Memory",
        "note": "of the host",
        "unit": "GB",
        "top": max((_gib(sample.ram_total_bytes) or 0 for sample in samples), default=0),
        "lines": [_line("used", _each(samples, lambda sample: _gib(sample.ram_used_bytes)), fill=True)],
    }


def _phase_lines(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    seen = {name for sample in samples for name in sample.phases}
    known = [name for name in _PHASE_ORDER if name in seen]
    names = [*known, *sorted(seen - {*known, OTHER}), *([OTHER] if OTHER in seen else [])]
    wholes = [sum(sample.phases.values()) or 1.0 for sample in samples]
    return [
        _line(
            name,
            [100 * sample.phases.get(name, 0.0) / whole for sample, whole in zip(samples, wholes)],
            fill=True,
        )
        for name in names
    ]


def _line(name: str, values: Iterable[float | None], *, fill: bool = False) -> dict[str, Any]:
    rounded = [None if value is None else round(value, 2) for value in values]
    return {"name": name, "values": rounded, "fill": fill}


def _has_values(line: dict[str, Any]) -> bool:
    return any(value is not None for value in line["values"])


def _each(samples: Sequence[Sample], get: Callable[[Sample], float | None]) -> list[float | None]:
    return [get(sample) for sample in samples]


def _gpu(samples: Sequence[Sample], device: int, key: str) -> list[float | None]:
    return [
        next((gpu.get(key) for gpu in sample.gpus if gpu["device"] == device), None) for sample in samples
    ]


def _shares(parts: Iterable[float | None], wholes: Iterable[float | None]) -> list[float | None]:
    return [100 * part / whole if part is not None and whole else None for part, whole in zip(parts, wholes)]


def _gib(count: int | None) -> float | None:
    return None if count is None else count / _GIB
