"""The cursor: the position of a loader as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from flodl.core.errors import CursorError
from flodl.core.formats import counted
from flodl.core.integers import is_integer

_VERSION = 1
# What positions and lengths count: a source of whole batches has no samples.
Unit = Literal["samples", "batches"]
_DIFFERENT_DATA = (
    "To continue with different data, start a new run and load the weights of this one with load_checkpoint."
)


@dataclass(frozen=True)
class Cursor:
    """The epoch, the position in it, and the settings that determine the order.

    >>> cursor = Cursor(0, epoch=2, position=640, num_samples=1000, order="RandomSampler", unit="samples")
    >>> Cursor.read(cursor.state_dict()) == cursor
    True
    """

    seed: int
    epoch: int
    position: int
    num_samples: int | None
    order: str
    source: Any = None
    # None in a cursor from an older version if its order does not reveal the unit.
    unit: Unit | None = None

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
        unit = state["unit"] if state.get("unit") in ("samples", "batches") else _unit_of(str(state["order"]))
        return cls(**{name: state[name] for name in required}, source=state.get("source"), unit=unit)

    def check_against(self, own: Cursor, *, is_exact: bool = True) -> None:
        """Raise if this cursor was saved with different data, a different seed or a different order.

        With `is_exact`, the length of an epoch is certain, and a position beyond it is rejected.
        """
        advice = {
            "seed": "Use the same seed, or omit seed= to continue with the saved one.",
            "num_samples": f"Use the same data. {_DIFFERENT_DATA}",
            "order": "Use the same shuffle=, sampler= and num_workers=.",
        }
        for name, what_to_do in advice.items():
            if name == "num_samples":
                self._check_unit(own)
            saved, current = getattr(self, name), getattr(own, name)
            if saved != current and name == "num_samples" and own.unit == "batches":
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
            one = "batch" if own.unit == "batches" else "sample"
            raise CursorError(
                f"the cursor is at {one} {self.position} of {self.num_samples}, which is beyond the end. "
                "Restart the epoch with set_epoch."
            )

    def _check_unit(self, own: Cursor) -> None:
        """Raise if one of the two counts samples and the other one batches."""
        if self.unit is None or own.unit is None or self.unit == own.unit:
            return
        raise CursorError(
            f"the cursor was saved with {_length(self)} per epoch, but this loader has {_length(own)}. A "
            "DataLoader or a list of batches is read batch by batch, tensors and datasets sample by sample. "
            f"Use the same kind of data as before. {_DIFFERENT_DATA}"
        )


def _length(cursor: Cursor) -> str:
    """Return the length of an epoch in words.

    >>> _length(Cursor(0, 0, 0, num_samples=4, order="that of the source", unit="batches"))
    '4 batches'
    """
    if cursor.num_samples is None:
        return f"an unknown number of {cursor.unit}"
    return counted(cursor.num_samples, "batch" if cursor.unit == "batches" else "sample")


def _unit_of(order: str) -> Unit | None:
    """Return the unit of a cursor that does not contain it; None if either is possible.

    >>> _unit_of("RandomSampler"), _unit_of("that of a DataLoader(batch_size=8, …)")
    ('samples', 'batches')
    """
    if order.startswith("that of a DataLoader(batch_size="):
        return "batches"
    return None if order.startswith(("that of ", "a buffer ")) else "samples"
