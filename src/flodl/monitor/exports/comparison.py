"""Runs for scripts: the settings, the best and last values and the epochs of each, as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from ..journal import Reader, dumps
from ..snapshot import Focus, Run, compare, epoch_with_id, merge_history, summary


def comparison_json(runs: Sequence[Run], *, focus: Focus | None = None) -> bytes:
    """Return runs with all of their settings, and the names of those that differ, as strict JSON."""
    focus = focus or Focus()
    readers = [Reader.of(run) for run in runs]
    summaries = [summary(reader, modes=focus.modes) for reader in readers]
    compared = compare(summaries, focus)
    for run, reader, found in zip(compared["runs"], readers, summaries):
        epochs = [entry for entry in reader.entries({"epoch"}) if entry.event.rank == 0]
        run["folder"] = str(reader.path.parent)
        own = {item["path"]: item.get("value") for item in found["config"] if "path" in item}
        # Those that differ include the number of epochs, which a run may have as a fact only.
        run["settings"] = own | {path: one for path, one in run["settings"].items() if path[:1] != "("}
        run["changed"], run["ignored"] = found["changed"], found["ignored"]
        run["facts"] = found["facts"]
        run["history"] = merge_history(epoch_with_id(entry, found["total_epochs"]) for entry in epochs)
    return dumps({name: compared[name] for name in ("metric", "differing", "runs")})
