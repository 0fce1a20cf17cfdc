"""What a run tells about itself: one small record for each thing that happened.

What the data of each kind hold. Epochs and steps count from 0 here; people see epochs from 1. A value that
is not known is absent.

| kind        | data |
| ----------- | ------------------------ |
| `run_start` | name, total_epochs, config: [{path, value, origin}], versions, pid, host, hardware |
| `epoch`     | epoch, metrics: {name: value}, duration_s, eta_s |
| `metrics`   | epoch, step, metrics: {name: value} |
| `progress`  | epoch, step, num_steps: where within the epoch |
| `resources` | cpu_pct, ram_used_bytes, ram_total_bytes, gpus: [{device, name, util_pct, vram_used_bytes…}] |
| `graph`     | label, hash, device, parameters: {total, trainable}, path (of the picture, by the journal) |
| `tier`      | tier, reason, step, gain, eager_step_s, step_s; what, if it is one decision on the way |
| `save`      | path, reason, duration_s |
| `alert`     | message, level: info, warning or error, path |
| `gc`        | duration_s, generation |
| `sync`      | duration_s, ranks: a meeting of ranks, or a wait for the device |
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
]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened in a run: its kind, its time and what it says.

    >>> Event("epoch", {"epoch": 1, "metrics": {"loss": 0.5}, "duration_s": 2.0}, time_s=10.0).kind
    'epoch'
    """

    kind: Kind
    data: Mapping[str, Any]
    time_s: float = field(default_factory=time.time)
    rank: int = 0


View = Callable[[Event], object]
