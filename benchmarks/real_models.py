"""Training models of transformers and torchvision, written as their users write them.

    python benchmarks/real_models.py [--rows GPT-2] [--starts] [--quick --device cpu] [--again]

AdamW, clipping, bf16 autocast unless the row says otherwise, and the batch already on the device. Rivals are
torch in eager mode and in each mode of its compiler. Each runs in its own process. All of them are compiled
at the same time; then they take turns. A row is added to the JSON file when it is done.
`--starts` measures the time until the fast step runs, with an empty cache and on a second start.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from typing import Any

from harness import machine, table
from real_rows import ROWS
from real_rows.measure import Sizes
from real_rows.starts import both_starts, start
from rows.runner import Suite


def show(name: str, row: dict[str, Any]) -> None:
    """Print the result of a row."""
    cells = [
        [
            rival,
            f"{found['ms']:.3f}",
            f"{found['jitter']:.1%}",
            _times(found.get("over_best_rival")),
            _number(found.get("peak_gb")),
            _number(found.get("kept_gb")),
            f"{found['of_peak']:.0%}" if "of_peak" in found else "",
            found.get("tier", ""),
        ]
        for rival, found in row["rivals"].items()
    ]
    header = [name, "ms", "jitter", "over best", "peak GB", "kept GB", "of peak", "tier"]
    print(table(header, cells))
    for rival, reason in row["failures"].items():
        print(f"  {rival}: {reason}")


def summarize(rows: dict[str, Any]) -> None:
    """Print one line per model, with the best mode of torch beside flodl, and the means."""
    cells, ratios = [], []
    for name, row in rows.items():
        rivals = row["rivals"]
        ours = rivals.get("flodl compiled")
        theirs = {rival: found for rival, found in rivals.items() if rival.startswith("torch")}
        if not ours or not theirs:
            continue
        best = min(theirs, key=lambda rival: theirs[rival]["ms"])
        ratio = ours.get("over_best_rival") or theirs[best]["ms"] / ours["ms"]
        if row["is_transformer"] and row["precision"] == "bf16":
            ratios.append(ratio)
        eager = theirs.get("torch eager", {})
        cells.append(
            [
                name,
                _number(eager.get("ms")),
                f"{theirs[best]['ms']:.2f} ({best.removeprefix('torch ')})",
                _number(ours["ms"]),
                _times(ratio),
                f"{_number(theirs[best].get('kept_gb'))} / {_number(ours.get('kept_gb'))}",
                f"{_number(eager.get('peak_gb'))} / {_number(ours.get('peak_gb'))}",
            ]
        )
    header = ["model", "eager ms", "best mode ms", "flodl ms", "gain", "kept GB: best / flodl"]
    print(table([*header, "peak GB: eager / flodl"], cells))
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"geometric mean over transformers in bf16: {mean:.2f}×")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}×"


SUITE = Suite(__file__, "real_models", ROWS, Sizes, show, summarize)


def measure_starts(options: argparse.Namespace) -> None:
    """Measure the starts of each model, and write them to their own file."""
    path = options.json / f"real_models_starts_{options.device}.json"
    merged: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": {}}
    for name in [name for name in ROWS if re.search(options.rows, name)]:
        if name in merged["rows"] and not options.again:
            continue
        found = both_starts(__file__, f"^{re.escape(name)}$", options.device, quick=options.quick)
        merged |= {"machine": machine()}
        merged["rows"][name] = found
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(json.dumps(merged, indent=2) + "\n")
        cells = [
            [rival, *(_number(answer and answer["ready_s"]) for answer in answers.values())]
            for rival, answers in found.items()
        ]
        print(table([name, "first start s", "second start s"], cells), flush=True)


def main() -> None:
    parser = SUITE.parser(__doc__)
    parser.add_argument("--starts", action="store_true", help="measure the first and the second start")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        (name,) = [name for name in ROWS if re.search(options.rows, name)]
        print(json.dumps(start(name, options.start, options.device, quick=options.quick)))
    elif options.starts:
        measure_starts(options)
    else:
        SUITE.run(options)


if __name__ == "__main__":
    main()
