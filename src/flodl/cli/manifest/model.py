"""The keys and types of a manifest, as msgspec structs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Scalar = bool | int | float | str
Positive = Annotated[int, msgspec.Meta(ge=1)]
Options = dict[str, Scalar | list[Scalar] | dict[str, Any] | None] | None


class SpeedHint(msgspec.Struct, forbid_unknown_fields=True):
    """The slow rank and its speed ratio."""

    slow_rank: int
    ratio: float


class Ddp(msgspec.Struct, forbid_unknown_fields=True):
    """Settings for distributed training. The options are passed in this order."""

    mode: str | None = None
    policy: str | None = None
    backend: str | None = None
    anchor: int | Literal["auto"] | None = None
    max_anchor: int | None = None
    overhead_target: float | None = None
    divergence_threshold: float | None = None
    max_batch_diff: int | None = None
    max_grad_norm: float | None = None
    snapshot_timeout: float | None = None
    checkpoint_every: int | None = None
    progressive: bool | Literal["auto"] | None = None
    speed_hint: SpeedHint | None = None
    partition_ratios: list[float] | None = None
    lr_scale_ratio: float | None = None
    timeline: bool | None = None


class Training(msgspec.Struct, forbid_unknown_fields=True):
    """Training length, batch size and learning rate."""

    epochs: Positive | None = None
    batch_size: Positive | None = None
    batches_per_epoch: Positive | None = None
    lr: Annotated[float, msgspec.Meta(ge=0)] | None = None
    seed: int | None = None


class Output(msgspec.Struct, forbid_unknown_fields=True):
    """Where results are written, and how they are monitored."""

    dir: str | None = None
    monitor: bool | int | str | None = None
    timeline: bool | None = None


class Sweep(msgspec.Struct, forbid_unknown_fields=True):
    """What `fdl sweep` tries: values and ranges by option, presets, and how they are searched."""

    over: dict[str, Any] | None = None
    presets: list[str] | None = None
    search: Literal["grid", "random", "tpe", "gp", "ray:hyperopt", "ray:bayesopt", "ray:optuna"] | None = None
    runs: Positive | None = None
    metric: str | None = None
    mode: Literal["min", "max"] | None = None
    seed: int | None = None


class CommandModel(msgspec.Struct, forbid_unknown_fields=True):
    """One entry of `commands:`."""

    description: str | None = None
    run: str | None = None
    append: str | None = None
    path: str | None = None
    docker: str | None = None
    ddp: Ddp | None = None
    training: Training | None = None
    output: Output | None = None
    options: Options = None


class ManifestModel(msgspec.Struct, forbid_unknown_fields=True, rename="kebab"):
    """A whole manifest. Each command is validated separately, when it is used."""

    description: str | None = None
    commands: dict[str, Any] | None = None
    inherit_from: str | None = None
    entry: str | None = None
    docker: str | None = None
    ddp: Ddp | None = None
    training: Training | None = None
    output: Output | None = None
    arg_name: str | None = None
    schema: dict[str, Any] | None = None
    compile: bool | None = None
    sweep: Sweep | None = None
