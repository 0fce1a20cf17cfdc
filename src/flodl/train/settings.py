"""What a trainer is asked to do beside the step itself, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from flodl.core import TrainError
from flodl.core.integers import is_integer
from flodl.core.paths import suggestion

NanPolicy = Literal["stop", "skip", "rollback"]
DiskPolicy = Literal["go on", "stop"]


@dataclass(frozen=True)
class TrainerSettings:
    """The settings of a `Trainer` that do not belong to its step, checked once."""

    save_every: int | None = 1
    save_every_steps: int | None = None
    log_every: int | None = 1
    nan: NanPolicy = "stop"
    when_disk_fails: DiskPolicy = "go on"
    ema: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("save_every", "save_every_steps", "log_every"):
            every = getattr(self, name)
            if every is not None and not is_integer(every, at_least=1):
                raise TrainError(f"{name}={every!r}. Give a whole number from 1 up, or None for never.")
        if not is_integer(self.seed, at_least=0):
            raise TrainError(f"seed={self.seed!r}. Give a whole number from 0 up.")
        _one_of("nan", self.nan, get_args(NanPolicy))
        _one_of("when_disk_fails", self.when_disk_fails, get_args(DiskPolicy))


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise TrainError(f"{name}={value!r}. {suggestion(str(value), known, known_as='values')}")
