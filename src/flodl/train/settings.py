"""The settings of a trainer that do not belong to its step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, SupportsFloat, get_args

from flodl.core import TrainError
from flodl.core.integers import as_integer, as_number, is_integer
from flodl.core.paths import suggestion

NanPolicy = Literal["stop", "skip", "rollback"]
DiskPolicy = Literal["continue", "stop"]


@dataclass(frozen=True)
class TrainerSettings:
    """The settings of a `Trainer` that do not belong to its step, validated."""

    save_every: int | None = 1
    save_every_steps: int | None = None
    log_every: int | None = 1
    nan: NanPolicy = "stop"
    when_disk_fails: DiskPolicy = "continue"
    ema: float | None = None
    seed: int | None = None
    dry_pass: bool = True
    # With several devices.
    devices: tuple[str, ...] = ()
    policy: str = ""
    backend: str = ""
    wire: str = ""
    outer: str = ""

    def __post_init__(self) -> None:
        for name in ("save_every", "save_every_steps", "log_every", "seed"):
            object.__setattr__(self, name, as_integer(getattr(self, name)))
        object.__setattr__(self, "ema", as_number(self.ema))
        for name in ("save_every", "save_every_steps", "log_every"):
            every = getattr(self, name)
            if every is not None and not is_integer(every, at_least=1):
                raise TrainError(f"{name}={every!r}. Use an integer of at least 1, or None for never.")
        if self.seed is not None and not is_integer(self.seed, at_least=0):
            raise TrainError(
                f"seed={self.seed!r}. Use an integer of at least 0, or None for the seed of manual_seed."
            )
        if self.ema is not None and not isinstance(self.ema, SupportsFloat):
            raise TrainError(f"ema={self.ema!r}. Use a decay between 0 and 1, such as 0.999, or None.")
        if not isinstance(self.dry_pass, bool):
            raise TrainError(f"dry_pass={self.dry_pass!r}. Use True or False.")
        _check_choice("nan", self.nan, get_args(NanPolicy))
        _check_choice("when_disk_fails", self.when_disk_fails, get_args(DiskPolicy))


def unused_without_folder(settings: TrainerSettings, keep: Any) -> list[str]:
    """Return the settings that have no effect without a checkpoint_dir; raise for one that needs it."""
    if settings.nan == "rollback":
        raise TrainError("nan='rollback' loads the last bundle. Set a checkpoint_dir.")
    # The default value of save_every may have been left out.
    every = None if settings.save_every == TrainerSettings.save_every else settings.save_every
    given = {"keep": keep, "save_every": every, "save_every_steps": settings.save_every_steps}
    return [f"{name}={value}" for name, value in given.items() if value is not None]


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise TrainError(f"{name}={value!r}. {suggestion(str(value), choices, known_as='values')}")
