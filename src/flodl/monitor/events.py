"""The events of a run: one small record for each thing that happened.

The fields of each kind are listed below. Epochs and steps count from 0 here; users see epochs from 1. Unknown
values are omitted.

| kind        | data |
| ----------- | ------------------------ |
| `run_start` | name, total_epochs, config: [{path, value, origin}], versions, pid, host, hardware |
| `epoch`     | epoch, metrics: {name: value}, duration_s, eta_s, tables: {name: {labels, values}}, restored |
| `metrics`   | epoch, step, metrics: {name: value} |
| `progress`  | epoch, step, num_steps: the position within the epoch |
| `resources` | cpu_pct, ram_used_bytes, ram_total_bytes, gpus: [{device, name, util_pct, vram_used_bytes…}] |
| `graph`     | label, hash, device, parameters: {total, trainable}, path of the picture (relative) |
| `tier`      | tier, reason, step, gain, eager_step_s, step_s; what, for a single decision |
| `save`      | path, reason, duration_s |
| `alert`     | message, level: info, warning or error, path |
| `gc`        | duration_s, generation |
| `sync`      | duration_s, ranks: a synchronization of ranks, or a wait for the device |
| `config`    | config, total_epochs, versions: settings that became known after the start |
| `note`      | message, about, step, level: a remark from the training step, for example about samples |
| `ranks`     | policy, totals, ranks: [{rank, device, state…}], slices, syncs, pace: several ranks so far |
| `run_end`   | status: finished, stopped or failed, message, duration_s |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Kind = Literal[
    "run_start",
    "epoch",
    "metrics",
    "progress",
    "resources",
    "graph",
    "tier",
    "save",
    "alert",
    "gc",
    "sync",
    "run_end",
    "config",
    "ranks",
    "note",
]
# An index stores positions in this list, so new kinds are added at its end.
KINDS: tuple[Kind, ...] = get_args(Kind)
# Every consumer relies on these fields; an event without them is rejected.
REQUIRED: dict[str, frozenset[str]] = {
    "epoch": frozenset({"epoch"}),
    "metrics": frozenset({"step", "metrics"}),
    "progress": frozenset({"epoch", "step"}),
    "tier": frozenset({"tier"}),
    "save": frozenset({"path"}),
    "alert": frozenset({"message"}),
    "gc": frozenset({"duration_s"}),
    "sync": frozenset({"duration_s"}),
    "run_end": frozenset({"status"}),
    "config": frozenset({"config"}),
    "ranks": frozenset({"ranks"}),
    "note": frozenset({"message"}),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened in a run: its kind, its data and its time.

    >>> Event("epoch", {"epoch": 1, "metrics": {"loss": 0.5}, "duration_s": 2.0}, time_s=10.0).kind
    'epoch'
    """

    kind: Kind
    data: Mapping[str, Any]
    time_s: float = field(default_factory=time.time)
    rank: int = 0


View = Callable[[Event], object]
