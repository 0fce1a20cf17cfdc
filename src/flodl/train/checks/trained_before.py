"""A model object that another Trainer of this process has trained: its next run does not start afresh."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import ReferenceType, WeakKeyDictionary, ref

from torch import nn

from flodl.core.formats import counted
from flodl.monitor.run_settings.model import hash_of_weights

from ..session import Session


@dataclass(frozen=True)
class EarlierRun:
    """The end of a run: the updates it made, and the weights that it left in the model."""

    session: ReferenceType[Session]
    updates: int
    # How often each trained parameter had been written to, by name: a load writes to them, too.
    versions: dict[str, int]
    weights: str


# Not an attribute of the model, which would be copied and saved with it.
_ended: WeakKeyDictionary[nn.Module, EarlierRun] = WeakKeyDictionary()


def remember_training(session: Session) -> None:
    """Remember the weights that a run leaves in its model."""
    model = session.model
    if session.updates:
        _ended[model] = EarlierRun(ref(session), session.updates, _versions(model), hash_of_weights(model))


def earlier_run(session: Session) -> EarlierRun | None:
    """Return the run of another trainer that left the model as it is, for a run with a new optimizer.

    None if weights were loaded or reset since, or if other parameters are trained now: that is fine-tuning.
    """
    found = _ended.get(session.model)
    if (
        found is None
        or found.session() is session
        or session.updates
        or any(session.optimizer.state.values())
    ):
        return None
    return found if found.versions == _versions(session.model) else None


def other_weights_note(session: Session) -> str:
    """Return a note that a trainer continues from weights that the program has changed since.

    It is "" if another trainer has changed them.
    """
    found = _ended.get(session.model)
    if found is not None and found.session() is not session and found.versions == _versions(session.model):
        return ""
    return (
        "since this trainer trained last, the weights were changed: it continues from the new weights, with "
        "the optimizer state from the old ones"
    )


def note_of(earlier: EarlierRun | None, session: Session) -> str:
    """Return that a run continues from the weights of an earlier one, or "" if something was loaded since."""
    if earlier is None or session.updates or hash_of_weights(session.model) != earlier.weights:
        return ""
    return (
        "another Trainer in this program has already trained this model object, for "
        f"{counted(earlier.updates, 'update')}: this run continues from those weights, with a new optimizer. "
        "To compare settings, create a new model for each run"
    )


def _versions(model: nn.Module) -> dict[str, int]:
    return {name: one._version for name, one in model.named_parameters() if one.requires_grad}
