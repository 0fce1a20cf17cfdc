"""Where a loader stands, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flodl.core.errors import CursorError
from flodl.core.integers import is_integer

_VERSION = 1


@dataclass(frozen=True)
class Cursor:
    """The epoch, the samples already given in it, and what these depend on.

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
        """Give the cursor as data for JSON."""
        return {"version": _VERSION, **asdict(self)}

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> Cursor:
        """Take a cursor from what `state_dict` gave."""
        wanted = {"seed", "epoch", "position", "num_samples", "order"}
        if not isinstance(state, Mapping) or not wanted <= set(state):
            have = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise CursorError(f"the state has {have}; give what state_dict() of a loader gave.")
        if state.get("version") != _VERSION:
            raise CursorError(f"the state has version {state.get('version')!r}; this flodl reads {_VERSION}.")
        for name in ("epoch", "position"):
            if not is_integer(state[name], at_least=0):
                raise CursorError(f"the state has {name}={state[name]!r}; expected a whole number from 0 up.")
        return cls(**{name: state[name] for name in wanted}, source=state.get("source"))

    def check_against(self, mine: Cursor) -> None:
        """Refuse a cursor that was saved with other data, another seed or another order."""
        changes = {
            "seed": "Give the loader the seed that it had.",
            "num_samples": "Give the loader the data that it had. To go on with other data, begin a "
            "new run and load the weights of this one with load_checkpoint.",
            "order": "Give the loader the shuffle=, sampler= or num_workers= that it had.",
        }
        for name, advice in changes.items():
            saved, own = getattr(self, name), getattr(mine, name)
            if saved != own:
                raise CursorError(
                    f"the cursor was saved with {name}={saved!r}, this loader has {own!r}. {advice}"
                )
        if self.num_samples is not None and self.position > self.num_samples:
            raise CursorError(
                f"the cursor stands at sample {self.position} of {self.num_samples}, which is beyond "
                "the end. Start the epoch anew with set_epoch."
            )
