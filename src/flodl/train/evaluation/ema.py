"""An exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flodl.core import TrainError, log
from flodl.core.formats import a_type
from flodl.core.integers import is_number


class AveragedWeights:
    """Keep `decay · average + (1 − decay) · weights`, updated after every optimizer update, on the device.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 0.0)
    >>> average = AveragedWeights(model, decay=0.9)
    >>> _ = nn.init.constant_(model.weight, 1.0)
    >>> average.update()
    >>> with average.applied():
    ...     print(f"{model.weight.item():.2f}")
    0.10
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        if not is_number(decay) or not 0.0 < decay < 1.0:
            raise TrainError(f"ema={decay!r}. Use a decay between 0 and 1, such as 0.999.")
        if not isinstance(model, nn.Module):
            raise TrainError(f"ema: the model is {a_type(model)}, not an nn.Module. Pass the model itself.")
        self.decay = decay
        # Whether the model has the averaged weights, inside `applied`.
        self.is_applied = False
        moving = {n: p for n, p in model.named_parameters() if p.is_floating_point() or p.is_complex()}
        if not moving:
            raise TrainError("ema: the model has no parameters that can be averaged. Omit ema.")
        for name, parameter in moving.items():
            if is_lazy(parameter):
                raise TrainError(f"ema: {name!r} has no shape yet. Call the model once first.")
        self._names = list(moving)
        self._parameters = list(moving.values())
        self._live = [parameter.detach() for parameter in self._parameters]
        self._average = [weight.clone() for weight in self._live]
        # Whether it differs from the weights: there was an update, or an average was loaded.
        self._has_begun = False
        self._versions: list[int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy, whose parameters count from 0 how often they were written to."""
        state = {name: value for name, value in vars(self).items() if name not in ("_live", "_versions")}
        return {**state, "_remembers": self._versions is not None, "_lags": self.is_left_behind}

    def __setstate__(self, state: dict[str, Any]) -> None:
        remembers, lags = state.pop("_remembers"), state.pop("_lags")
        vars(self).update(state)
        # They share the memory and the version of the parameters, which a copy of them would not.
        self._live = [parameter.detach() for parameter in self._parameters]
        self._versions = [weight._version - lags for weight in self._live] if remembers else None

    def follow(self) -> None:
        """Before the first update, start from the current weights, which may have been loaded meanwhile."""
        if not self._has_begun:
            torch._foreach_copy_(self._average, self._live)

    def remember(self) -> None:
        """Remember the weights at the end of a run."""
        self._versions = [weight._version for weight in self._live]

    @property
    def is_left_behind(self) -> bool:
        """Whether the weights were written to since `remember`, so that the average has earlier ones."""
        written = self._versions is not None and self._versions != [w._version for w in self._live]
        return self._has_begun and written

    def update(self, skipped: Tensor | None = None) -> None:
        """Move the average towards the weights, unless `skipped` is true.

        This does not wait for a flag on a device.
        """
        self._has_begun, self._versions = True, None
        if skipped is not None and skipped.device.type != "cpu":
            self._move_unless(skipped)
        elif skipped is None or not bool(skipped):
            torch._foreach_lerp_(self._average, self._live, 1.0 - self.decay)

    def _move_unless(self, skipped: Tensor) -> None:
        """Move the average by a weight that is 0 if the flag is set, without reading it on the host."""
        dtype = torch.float64 if self._live[0].dtype == torch.float64 else torch.float32
        weight = skipped.logical_not().to(dtype) * (1.0 - self.decay)
        distances = torch._foreach_sub(self._live, self._average)
        torch._foreach_mul_(distances, weight)
        torch._foreach_add_(self._average, distances)

    def applied(self) -> AbstractContextManager[None]:
        """Return a context with the averaged weights in the model; buffers do not change.

        Inside, the trainer raises instead of training, evaluating or saving with these weights. Without
        `with`, nothing happens, which is reported.
        """
        return _Entered(self._applied())

    @contextmanager
    def _applied(self) -> Iterator[None]:
        self.follow()
        is_left_behind = self.is_left_behind
        live, was_applied = [weight.clone() for weight in self._live], self.is_applied
        try:
            torch._foreach_copy_(self._live, self._average)
            self.is_applied = True
            yield
        finally:
            torch._foreach_copy_(self._live, live)
            self.is_applied = was_applied
            if self._versions is not None and not is_left_behind:
                self.remember()

    def refuse_inside(self, action: str) -> None:
        """Raise inside `applied`."""
        if self.is_applied:
            raise TrainError(
                f"trainer.{action} was called inside average.applied(), where the model has the averaged "
                "weights, which the trainer would treat as its own. Call it outside the context. An "
                "evaluation reports the averaged weights anyway, as 'ema_loss' and so on."
            )

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages by parameter name."""
        return dict(zip(self._names, self._average))

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state_dict`, or start again from weights."""
        missing = [name for name in self._names if name not in state]
        if missing:
            raise TrainError(f"the saved average has no {missing[0]!r}: it belongs to a different model.")
        for name, average in zip(self._names, self._average):
            average.copy_(state[name].detach())
        self._has_begun, self._versions = True, None


class _Entered(AbstractContextManager[None]):
    """A context that warns if it is never entered."""

    def __init__(self, inner: AbstractContextManager[None]) -> None:
        self._inner, self._is_entered = inner, False

    def __enter__(self) -> None:
        self._is_entered = True
        self._inner.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._inner.__exit__(kind, error, trace)

    def __del__(self) -> None:
        if not self._is_entered:
            log.warn(
                "average.applied() was called without `with`, which has no effect: the model keeps its own "
                "weights. Write `with trainer.average.applied():`. To keep the averaged weights, write "
                "model.load_state_dict(trainer.average.state_dict(), strict=False)."
            )
