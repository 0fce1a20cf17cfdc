"""The cursor: the position of a loader as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flodl.core.errors import CursorError
from flodl.core.integers import is_integer

_VERSION = 1


@dataclass(frozen=True)
class Cursor:
    """The epoch, the position in it, and the settings that determine the order.

    >>> cursor = Cursor(seed=0, epoch=2, position=640, num_samples=1000, order="RandomSampler")
    >>> Cursor.read(cursor.state_dict()) == cursor
    True
    """

    seed: int
    epoch: int
    position: int
    num_samples: int | None
    order: str
    source: Any = None

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor as JSON-serializable data."""
        return {"version": _VERSION, **asdict(self)}

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> Cursor:
        """Return the cursor that `state_dict` saved."""
        required = {"seed", "epoch", "position", "num_samples", "order"}
        if not isinstance(state, Mapping) or not required <= set(state):
            found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise CursorError(f"the state has {found}. Pass the state_dict() of a loader.")
        if state.get("version") != _VERSION:
            raise CursorError(
                f"the state has version {state.get('version')!r}; this version of flodl reads {_VERSION}."
            )
        for name in ("seed", "epoch", "position"):
            if not is_integer(state[name], at_least=0):
                raise CursorError(f"the state has {name}={state[name]!r}; expected an integer >= 0.")
        return cls(**{name: state[name] for name in required}, source=state.get("source"))

    def check_against(self, own: Cursor, *, is_exact: bool = True, counts_batches: bool = False) -> None:
        """Raise if this cursor was saved with different data, a different seed or a different order.

        With `is_exact`, the number of samples is certain, and a position beyond it is rejected. With
        `counts_batches`, the source yields whole batches, and positions and numbers count those.
        """
        advice = {
            "seed": "Use the same seed, or omit seed= to continue with the saved one.",
            "num_samples": "Use the same data. To continue with different data, start a new run and load the "
            "weights of this one with load_checkpoint.",
            "order": "Use the same shuffle=, sampler= and num_workers=.",
        }
        for name, what_to_do in advice.items():
            saved, current = getattr(self, name), getattr(own, name)
            if saved != current and name == "num_samples" and counts_batches:
                raise CursorError(
                    f"the cursor was saved with {saved} batches per epoch, but this loader has {current}. "
                    "Use the same data, batch_size and drop_last. To continue with different ones, start a "
                    "new run and load the weights of this one with load_checkpoint."
                )
            if saved != current:
                raise CursorError(
                    f"the cursor was saved with {name}={saved!r}, but this loader has {current!r}. "
                    f"{what_to_do}"
                )
        if is_exact and self.num_samples is not None and self.position > self.num_samples:
            raise CursorError(
                f"the cursor is at sample {self.position} of {self.num_samples}, which is beyond the end. "
                "Restart the epoch with set_epoch."
            )
