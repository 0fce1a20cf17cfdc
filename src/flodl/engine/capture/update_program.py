"""The second program of a step whose gradients are averaged over ranks: clip, check and update, recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..device.tensors import same_bits
from ..errors import NotCapturable
from ..optimizer.adam import FastAdam
from ..program.program import StepBody
from ..program.progress import Stage
from ..state.snapshot import updated_state

NO_MEMORY = "there is not enough memory to record the update"
Gradients = Sequence[Tensor | None]
# Records a region without executing it; returns how to replay it.
Record = Callable[[Callable[[], None]], Callable[[], object]]


@dataclass(frozen=True)
class RecordedUpdate:
    """A recorded update, and what must stay alive with it."""

    replay: Callable[[], object]
    adam: FastAdam | None
    held: list[Tensor] = field(default_factory=list)


class UpdateProgram:
    """Updates from gradients that a recording wrote and that were averaged over ranks since.

    The first update runs in Python. It is then recorded, replayed from the same gradients and compared bit
    for bit; nothing of this needs the other ranks. If they differ, updates stay in Python.
    """

    def __init__(
        self, body: StepBody, record: Record, fast_update: Callable[[], FastAdam | None] = lambda: None
    ) -> None:
        self._body = body
        self._record = record
        self._fast_update = fast_update
        # Why updates are not recorded.
        self.refusal: str | None = None

    def run(self, grads: Gradients, recorded: RecordedUpdate | None) -> RecordedUpdate | None:
        """Update; replay `recorded` or return a new recording for these gradients, if possible."""
        body = self._body
        is_usual = all(p.grad is grad for p, grad in zip(body.parameters, grads, strict=True))
        # A parameter that only other ranks use has a gradient in other memory.
        if self.refusal is not None or not is_usual or body.updater.starts_parameters():
            body.update()
            return recorded
        if recorded is None:
            return self._learn(grads)
        body.progress.stage = Stage.UPDATING
        recorded.replay()
        body.progress.stage = Stage.UPDATED
        return recorded

    @torch.no_grad()
    def _learn(self, grads: Gradients) -> RecordedUpdate | None:
        """Update in Python, then record and compare; the state is as Python left it."""
        body = self._body
        live = self._live(grads)
        before = _copies(live)
        body.update()
        if bool(body.bad):
            # Of a skipped update there is nothing to compare; the next one is tried.
            return None
        after = _copies(live)
        if before is None or after is None:
            self.refusal = NO_MEMORY
            return None
        recorded: RecordedUpdate | None = None
        try:
            with body.progress.preserved():
                _write(before, live)
                recorded = self._recorded(live)
                _write(before, live)
                recorded.replay()
            if difference := _first_difference(after, live):
                self.refusal = f"the recorded update differs from eager in {difference}"
        except NotCapturable as error:
            self.refusal = f"the update cannot be recorded: {error}"
        except torch.OutOfMemoryError:
            self.refusal = NO_MEMORY
        finally:
            _write(after, live)
        return recorded if self.refusal is None else None

    def _live(self, grads: Gradients) -> dict[str, Tensor]:
        """Return all tensors that an update reads and changes, by name."""
        updater = self._body.updater
        live = {"the flag": self._body.bad, "the gradient norm": updater.grad_norm}
        live |= {f"gradient {index}": grad for index, grad in enumerate(grads) if grad is not None}
        return live | updated_state(self._body)

    def _recorded(self, live: dict[str, Tensor]) -> RecordedUpdate:
        adam = self._fast_update()
        # Aliases of the memory: `.data = …` would give the tensors themselves other memory.
        held = [tensor.detach() for tensor in live.values()]
        replay = self._record(lambda: self._body.update(quick=adam))
        if adam is not None:
            adam.write_tables()
        return RecordedUpdate(replay, adam, held)


def _copies(live: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """Return copies; None if there is no memory for them."""
    try:
        return {name: tensor.clone() for name, tensor in live.items()}
    except torch.OutOfMemoryError:
        return None


def _write(copies: dict[str, Tensor], live: dict[str, Tensor]) -> None:
    for name, tensor in live.items():
        tensor.copy_(copies[name])


def _first_difference(copies: dict[str, Tensor], live: dict[str, Tensor]) -> str | None:
    return next((name for name, tensor in live.items() if not same_bits(copies[name], tensor)), None)
