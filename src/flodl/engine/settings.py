"""The settings of a training step, validated once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from flodl.core import StepError
from flodl.core.integers import as_integer, as_number, is_integer, is_number
from flodl.core.paths import suggestion

StepFunction = Callable[..., Any]

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Tier = Literal["eager", "captured", "compiled"]
TierChoice = Literal["auto", "eager", "captured", "compiled"]
Tail = Literal["eager", "pad", "drop"]
Tune = Literal["gemm"]
Guard = Literal["loss", "gradients"]


@dataclass(frozen=True)
class StepSettings:
    """The settings of a `TrainStep`."""

    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    precision: Precision = "fp32"
    tier: TierChoice = "auto"
    tail: Tail = "eager"
    tune: Tune | None = None
    tune_budget_s: float = 300.0
    strict: bool = False
    guard: Guard = "gradients"

    def __post_init__(self) -> None:
        object.__setattr__(self, "accumulate", as_integer(self.accumulate))
        for name in ("clip_norm", "clip_value", "tune_budget_s"):
            object.__setattr__(self, name, as_number(getattr(self, name)))
        _one_of("precision", self.precision, get_args(Precision))
        _one_of("tier", self.tier, get_args(TierChoice))
        _one_of("tail", self.tail, get_args(Tail))
        _one_of("guard", self.guard, get_args(Guard))
        if self.tune is not None:
            _one_of("tune", self.tune, get_args(Tune))
        if not is_number(self.tune_budget_s) or not self.tune_budget_s > 0:
            raise StepError(
                f"tune_budget_s={self.tune_budget_s!r}. Pass the number of seconds that tuning may take."
            )
        for name in ("clip_norm", "clip_value"):
            limit = getattr(self, name)
            is_usable = isinstance(limit, int | float) and not isinstance(limit, bool) and limit > 0
            if limit is not None and not is_usable:
                raise StepError(f"{name}={limit!r}. Pass a limit above zero, or None for no clipping.")
        if not is_integer(self.accumulate, at_least=1):
            raise StepError(f"accumulate={self.accumulate!r}. Pass an integer of at least 1.")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise StepError(f"{name}={value!r}. {suggestion(str(value), known, known_as='values')}")
