"""Measures how fast a step is on each tier; the code behind `fdl bench`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from flodl.core import StepError
from flodl.core.formats import a_type
from flodl.core.paths import suggestion

from .device.timing import now_s
from .program.arguments import check_arguments
from .report import StepReport
from .settings import StepFunction, TierChoice
from .step import TrainStep

# A plain torch loop is measured too, as an independent baseline.
Rival = Literal["torch", "eager", "captured", "compiled"]
RIVALS: tuple[str, ...] = get_args(Rival)

# Enough for the warm-up, two compared updates and the measured windows of a tier.
READY_STEPS = 16

Work = tuple[nn.Module, Optimizer, StepFunction, tuple[Any, ...]]
MakeWork = Callable[[], Work]


@dataclass(frozen=True)
class Timing:
    """The result of one rival: seconds per step in every round, the tier that ran, and why."""

    rival: str
    ran: str
    reason: str
    setup_s: float
    samples_s: tuple[float, ...]
    report: StepReport | None = None

    @property
    def median_s(self) -> float:
        """The median of the rounds, in seconds per step."""
        return statistics.median(self.samples_s)

    @property
    def jitter(self) -> float:
        """The scaled median absolute deviation, relative to the median.

        >>> Timing("eager", "eager", "", 0.0, (1.0, 1.0, 1.1)).jitter
        0.0
        """
        middle = self.median_s
        return 1.4826 * statistics.median(abs(sample - middle) for sample in self.samples_s) / middle

    def to_dict(self) -> dict[str, Any]:
        """Return the timing as plain data for JSON."""
        return {
            "rival": self.rival,
            "ran": self.ran,
            "reason": self.reason,
            "setup_s": self.setup_s,
            "median_s": self.median_s,
            "jitter": self.jitter,
            "samples_s": list(self.samples_s),
            "report": None if self.report is None else self.report.to_dict(),
        }


def compare(
    make: MakeWork,
    rivals: Iterable[str] = RIVALS,
    *,
    steps: int = 50,
    rounds: int = 7,
    device: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Timing]:
    """Measure the same work on each tier, in turns and in a different order each round.

    `make()` returns `(model, optimizer, step_fn, batch)` and is called once for each rival, with the same
    seed. If a tier is not available, the tier that ran instead is measured, and the reason is kept.
    """
    ready = [_get_ready(make, _rival(name), device, say) for name in rivals]
    samples: list[list[float]] = [[] for _ in ready]
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        order = list(range(len(ready)))
        for index in order[number % len(order) :] + order[: number % len(order)]:
            samples[index].append(ready[index].seconds_per_step(steps))
    return [entrant.timing(taken) for entrant, taken in zip(ready, samples)]


def small_work(device: str) -> Work:
    """Return a small residual model, for which the overhead of the host matters."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU()) for _ in range(8)]
    model = nn.Sequential(*(_Residual(block) for block in blocks)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = (torch.randn(64, 256, device=device), torch.randn(64, 256, device=device))
    return model, optimizer, _squared_error, batch


class _Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = x + self.inner(x)
        return changed


def _squared_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), y)


class _Entrant:
    """One rival with its own model, warmed up."""

    def __init__(self, rival: Rival, work: Work) -> None:
        self.rival = rival
        self._batch = work[3]
        self._device = next(work[0].parameters()).device
        self._step: TrainStep | None = None
        started = now_s(self._device)
        if rival == "torch":
            self._call: Callable[..., object] = _plain_loop(work)
        else:
            self._step = TrainStep(*work[:3], tier=cast(TierChoice, rival))
            self._call = self._step
        for _ in range(READY_STEPS):
            self._call(*self._batch)
        self.setup_s = now_s(self._device) - started

    def seconds_per_step(self, steps: int) -> float:
        started = now_s(self._device)
        for _ in range(steps):
            self._call(*self._batch)
        return (now_s(self._device) - started) / steps

    def timing(self, samples: Sequence[float]) -> Timing:
        if self._step is None:
            ran, reason, report = "torch", "a plain torch loop", None
        else:
            report = self._step.report()
            ran, reason = report.tier, report.reason
            self._step.close()
        return Timing(self.rival, ran, reason, self.setup_s, tuple(samples), report)


def _get_ready(make: MakeWork, rival: Rival, device: str | None, say: Callable[[str], None]) -> _Entrant:
    say(f"{rival}: getting ready")
    started = time.perf_counter()
    torch.manual_seed(0)
    entrant = _Entrant(rival, check_work(make(), device))
    say(f"{rival}: ready after {time.perf_counter() - started:.1f} s")
    return entrant


def check_work(work: object, device: str | None) -> Work:
    """Raise if this is not work for a step; else move it to the requested device."""
    if not isinstance(work, tuple) or len(work) != 4:
        got = f"{len(work)} values" if isinstance(work, tuple) else f"{a_type(work)}"
        raise StepError(f"the function returns {got}. Return (model, optimizer, step_fn, batch).")
    model, optimizer, step_fn, batch = work
    check_arguments(model, optimizer, step_fn)
    batch = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    if device is not None:
        model = model.to(device)
        batch = pytree.tree_map_only(Tensor, lambda leaf: leaf.to(device), batch)
    return model, optimizer, step_fn, batch


def _plain_loop(work: Work) -> Callable[..., object]:
    model, optimizer, step_fn, _ = work

    def step(*batch: Any) -> Tensor:
        optimizer.zero_grad()
        result = step_fn(model, *batch)
        loss: Tensor = result[0] if isinstance(result, tuple) else result
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


def _rival(name: str) -> Rival:
    if name not in RIVALS:
        raise StepError(f"there is no tier {name!r}. {suggestion(name, RIVALS, known_as='tiers')}")
    return cast(Rival, name)
