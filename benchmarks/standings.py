"""Tables from measurements: ratios, the best torch mode, geometric means, agreement of losses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from harness import scaled_mad
from rivals import RIVALS

# Not one of the ten: its work depends on the data, so it is excluded from the means.
UNCOUNTED = ("feedback_loop",)

Results = Mapping[str, Any]


def milliseconds(model: Results, rival: str) -> float | None:
    """Return the median of a rival, or None if it was not measured."""
    number: float | None = model["rivals"].get(rival, {}).get("ms")
    return number


def best_torch(model: Results) -> float | None:
    """Return the median of the fastest of torch's own modes."""
    found = [milliseconds(model, name) for name, kind in RIVALS.items() if kind.plain_torch]
    return min((ms for ms in found if ms is not None), default=None)


def speedup(model: Results, rival: str, over: str = "reference") -> float | None:
    """Return how many times faster one rival is than another."""
    ours, theirs = milliseconds(model, rival), milliseconds(model, over)
    return theirs / ours if ours and theirs else None


def over_best_torch(model: Results, rival: str) -> float | None:
    """Return how many times faster a rival is than the best torch mode."""
    ours, best = milliseconds(model, rival), best_torch(model)
    return best / ours if ours and best else None


def geometric_mean(ratios: Iterable[float | None]) -> tuple[float, int] | None:
    """Return the mean of the ratios that are not None, and their number."""
    logs = [math.log(ratio) for ratio in ratios if ratio]
    return (math.exp(sum(logs) / len(logs)), len(logs)) if logs else None


def present(results: Results) -> list[str]:
    """Return the requested rivals, in the order of the tables."""
    asked = {name for model in results["models"].values() for name in model["rivals"]}
    return [name for name in RIVALS if name in asked]


def losses_apart(model: Results) -> dict[str, float]:
    """Return each rival's relative distance from eager's final loss.

    The scale is eager's final loss or a fifth of its first loss, whichever is larger: a loss near
    zero is mostly noise. Only losses after the same number of epochs are compared.
    """
    eager = model["rivals"].get("reference", {})
    if "final_loss" not in eager:
        return {}
    scale = max(abs(eager["final_loss"]), 0.2 * abs(eager["first_loss"]))
    return {
        name: abs(rival["final_loss"] - eager["final_loss"]) / scale
        for name, rival in model["rivals"].items()
        if rival.get("num_epochs") == eager["num_epochs"]
    }


def times(results: Results) -> tuple[list[str], list[list[str]]]:
    """Return the milliseconds per epoch with jitter; the last rows are mean speedups over torch eager."""
    rivals = present(results)
    rows = [[name, *(_cell(model, rival) for rival in rivals)] for name, model in results["models"].items()]
    for words, models in (
        ("geometric mean", _counted(results)),
        ("models that all ran", in_common(results)),
    ):
        rows.append([words, *(_mean(speedup(model, rival) for model in models) for rival in rivals)])
    return ["model", *(RIVALS[name].label for name in rivals)], rows


def ratios(results: Results) -> tuple[list[str], list[list[str]]]:
    """Return how many times faster flodl is than eager, the best torch mode, and JAX."""
    ours = [name for name in present(results) if name.startswith("flodl")]
    columns = [
        (f"{RIVALS[name].label.removeprefix('flodl ')} vs {words}", partial(against, rival=name))
        for name in ours
        for words, against in (
            ("eager", speedup),
            ("best torch", over_best_torch),
            ("JAX", partial(speedup, over="jax")),
        )
    ]
    rows = [
        [name, *(_times(ratio(model)) for _, ratio in columns)] for name, model in results["models"].items()
    ]
    counted = _counted(results)
    mean = ["geometric mean", *(_mean(ratio(model) for model in counted) for _, ratio in columns)]
    return ["flodl", *(words for words, _ in columns)], [*rows, mean]


def in_common(results: Results) -> list[Results]:
    """Return the models that every measured rival ran: only there can means be compared."""
    counted = _counted(results)
    ran = [rival for rival in present(results) if any(milliseconds(model, rival) for model in counted)]
    return [model for model in counted if all(milliseconds(model, rival) for rival in ran)]


def _counted(results: Results) -> list[Results]:
    return [model for name, model in results["models"].items() if name not in UNCOUNTED]


def notes(results: Results) -> list[str]:
    """Return notes on missing rivals, tiers, diverging losses, and models from other runs."""
    found: dict[str, list[str]] = {}
    for name, model in results["models"].items():
        for rival, taken in model["rivals"].items():
            words = taken.get("missing") or taken.get("note")
            if words:
                found.setdefault(f"{RIVALS[rival].label}: {words}", []).append(name)
        for rival, apart in losses_apart(model).items():
            if apart > 0.05:
                words = f"{RIVALS[rival].label}: the final loss differs from eager's by {apart:.0%}"
                found.setdefault(words, []).append(name)
        measured = model["measured"]
        if measured["commit"] != results["machine"]["commit"]:
            epochs = measured["rounds"] * measured["epochs"]
            words = f"different run: {epochs} timed epochs, commit {measured['commit']}, {measured['date']}"
            found.setdefault(words, []).append(name)
    return [f"{', '.join(names)}: {words}" for words, names in found.items()]


def within_turn(model: Results, rival: str) -> float | None:
    """Return a rival's jitter around the median of each turn, relative to the overall median."""
    taken, per_turn = model["rivals"].get(rival, {}), model["measured"]["epochs"]
    if "epochs_ms" not in taken or per_turn < 2:
        return None
    epochs = taken["epochs_ms"]
    turns = [epochs[at : at + per_turn] for at in range(0, len(epochs), per_turn)]
    apart = (epoch - statistics.median(turn) for turn in turns for epoch in turn)
    return scaled_mad(apart) / statistics.median(epochs)


def steadiness_note(results: Results) -> str | None:
    """Return a sentence about the jitter of each rival within its turns."""
    ranges = []
    for rival in present(results):
        found = [within_turn(model, rival) for model in _counted(results)]
        known = [jitter for jitter in found if jitter is not None]
        if known:
            ranges.append(f"{RIVALS[rival].label} {min(known):.2%} to {max(known):.2%}")
    if not ranges:
        return None
    return f"Jitter within a turn, which excludes changes of the machine between turns: {', '.join(ranges)}."


def identity_note(results: Results) -> str | None:
    """Return a sentence about the bitwise comparison, or None if it was not run."""
    checked = {name: model["identity"] for name, model in results["models"].items() if "identity" in model}
    if not checked:
        return None
    steps = next(iter(checked.values()))["steps"]
    same = [name for name, found in checked.items() if found["identical"]]
    words = f"Losses equal bit for bit to a plain torch loop over {steps} steps: {', '.join(same) or 'none'}."
    differ = [
        f"{name} (from step {found['first_difference'] + 1}; two plain runs "
        f"{'agree' if found['eager_repeats_itself'] else 'differ from each other too'})"
        for name, found in checked.items()
        if not found["identical"]
    ]
    return words + (f" Different: {', '.join(differ)}." if differ else "")


def _cell(model: Results, rival: str) -> str:
    taken = model["rivals"].get(rival, {})
    return f"{taken['ms']:.1f} ± {taken['jitter']:.1%}" if "ms" in taken else "—"


def _times(ratio: float | None) -> str:
    """Format a ratio with two decimals, or three if it is close to 1."""
    if ratio is None:
        return "—"
    return f"{ratio:.3f}×" if 0.98 < ratio < 1.02 else f"{ratio:.2f}×"


def _mean(ratios: Iterable[float | None]) -> str:
    mean = geometric_mean(ratios)
    return "—" if mean is None else f"{mean[0]:.2f}× of {mean[1]}"
