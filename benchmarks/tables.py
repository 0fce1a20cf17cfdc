"""Update the tables in README.md and the charts from the results.

python benchmarks/tables.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from chart import chart
from harness import RESULTS, ROOT
from standings import identity_note, notes, ratios, steadiness_note, times

README = ROOT / "benchmarks" / "README.md"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table with text aligned left and numbers aligned right."""
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def facts(results: dict[str, Any]) -> str:
    """Return the machine, versions and commit of the results in one line."""
    machine = results["machine"]
    on_cpu = results.get("settings", {}).get("device") == "cpu" or "gpu" not in machine
    words = [f"{machine['cpu']}, {machine['threads']} threads" if on_cpu else machine["gpu"]]
    words += [f"{name} {machine[name]}" for name in ("torch", "jax", "pytorch-lightning") if name in machine]
    return f"{machine['date']} · {' · '.join(words)} · commit {machine['commit']}"


def train_step(results: dict[str, Any]) -> str:
    settings = results["settings"]
    timed = f"{settings['rounds'] * settings['epochs']} timed epochs of {settings['batches']} steps"
    said = [
        f"- {line}" for line in [*notes(results), steadiness_note(results), identity_note(results)] if line
    ]
    chart_at = f"results/train_step_{settings['device'].partition(':')[0]}.svg"
    return "\n\n".join(
        [
            f"{facts(results)} · {timed}. Milliseconds per epoch ± jitter; the last rows are "
            "speedups over torch eager.",
            markdown(*times(results)),
            "Speedup of flodl (below 1, flodl is slower):",
            markdown(*ratios(results)),
            "\n".join(said),
            f"![Speed of a training epoch over torch eager]({chart_at})",
        ]
    )


_HOST_TIMES = {
    "host time of a call": "call",
    "time to the first step, transformer, fresh process": "first_step_fresh",
    "time to the first step, tiny model": "first_step",
    "time to the first step, transformer": "first_step_transformer",
}


def step_overhead(results: dict[str, Any]) -> str:
    rows = [
        [f"{group}: {name}", f"{taken['us']:.1f} ± {taken['jitter']:.1%}", f"{taken['best_us']:.1f}"]
        for group, key in _HOST_TIMES.items()
        for name, taken in results.get(key, {}).items()
    ]
    parts = [f"{facts(results)}.", markdown(["", "µs", "best"], rows)]
    if "over_bare_replay_us" in results:
        over = results["over_bare_replay_us"]
        parts.append(f"`TrainStep` over a bare replay, median of the rounds: {over:.1f} µs.")
    if "promotion" in results:
        steps = results["promotion"]["steps_ms"]
        parts.append(
            f"The step was promoted after step {results['promotion']['promoted_after']}; the slowest of the "
            f"first {len(steps)} steps took {max(steps):.1f} ms, the last {steps[-1]:.2f} ms."
        )
    return "\n\n".join(parts)


def graph_overhead(results: dict[str, Any]) -> str:
    rows = [
        [name, f"{taken['by_hand_ms']:.2f}", f"{taken['graph_ms']:.2f}", f"{taken['ratio']:.3f}"]
        for name, taken in results["models"].items()
    ]
    return f"{facts(results)}.\n\n" + markdown(["model", "by hand, ms", "graph, ms", "ratio"], rows)


def plain(results: dict[str, Any]) -> str:
    """Return one table per group of rivals, with one column per number."""
    parts = [f"{facts(results)}. {_settings(results)}"]
    for title, rivals in results.items():
        if title in ("machine", "settings") or not isinstance(rivals, dict):
            continue
        found = {name: taken for name, taken in rivals.items() if isinstance(taken, dict)}
        columns = list(dict.fromkeys(key for taken in found.values() for key in taken if _shown(taken[key])))
        rows = [[name, *(_cell(taken.get(column)) for column in columns)] for name, taken in found.items()]
        if rows:
            parts.append(markdown([title.replace("_", " "), *(c.replace("_", " ") for c in columns)], rows))
    return "\n\n".join(parts)


_LONG = ("best_ms", "reason", "best_rival", "tokens_per_s")


def by_row(results: dict[str, Any]) -> str:
    """Return one table per row of the benchmark, and the reasons why rivals are missing."""
    rows = results["rows"]
    errors = {name: row["relative_error"] for name, row in rows.items() if "relative_error" in row}
    tables = {
        name: {
            rival: {key: value for key, value in found.items() if key not in _LONG}
            for rival, found in row["rivals"].items()
        }
        for name, row in rows.items()
        if row["rivals"]
    }
    parts = [plain({"machine": results["machine"], "settings": {}, **tables, **errors})]
    parts += [
        f"- {name}: {rival}: {reason}"
        for name, row in rows.items()
        for rival, reason in row["failures"].items()
    ]
    return "\n\n".join(parts)


def quality(results: dict[str, Any]) -> str:
    """Return the means with their intervals."""
    rows = [
        [name, f"{item['mean']:.4f} ± {item['interval']:.4f}", str(item["seeds"])]
        for name, item in results["summary"].items()
    ]
    return f"{facts(results)}.\n\n" + markdown(["task, score, side", "mean ± 95 %", "seeds"], rows)


def parity(results: dict[str, Any]) -> str:
    """Return the differences of each model."""
    rows = [
        [model, f"{item['parameters'] / 1e6:.0f} M", name, f"{value:.1e}", f"{item['bound']:.0e}"]
        for model, item in results["models"].items()
        for name, value in item["differences"].items()
    ]
    header = ["model", "parameters", "", "difference", "bound"]
    return f"{facts(results)}.\n\n" + markdown(header, rows)


def _settings(results: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in results["settings"].items())


def _shown(value: Any) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value)


WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "train_step_cuda": train_step,
    "train_step_cpu": train_step,
    "step_overhead_cuda": step_overhead,
    "graph_overhead_cpu": graph_overhead,
    "graph_overhead_tiny_cpu": graph_overhead,
    "bert_cuda": plain,
    "hf_cuda": by_row,
    "hf_cpu": plain,
    "hf_quality_cuda": quality,
    "hf_parity_base": parity,
    "resnet20_cuda": plain,
    "loader_cpu": plain,
    "loader_cuda": plain,
    "checkpoint_cpu": plain,
    "checkpoint_cuda": plain,
    "monitor_cost_cpu": plain,
    "monitor_cost_cuda": plain,
    "fit_overhead_cpu": plain,
    "fit_overhead_cuda": plain,
}


def main() -> None:
    text = README.read_text()
    for name, write in WRITERS.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        results = json.loads(path.read_text())
        section = f"<!-- {name} -->\n\n{write(results)}\n\n<!-- end -->"
        text = re.sub(rf"<!-- {name} -->.*?<!-- end -->", lambda _, new=section: new, text, flags=re.DOTALL)
        if write is train_step:
            path.with_suffix(".svg").write_text(chart(results))
        print(f"{name}: {path.relative_to(ROOT)}")
    README.write_text(text)


if __name__ == "__main__":
    main()
