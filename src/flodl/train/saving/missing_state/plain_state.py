"""Tensors that the modules of a model store as plain attributes, and that later steps depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from flodl.core import log
from flodl.engine import (
    PlainTensor,
    TrainStep,
    WatchedAttributes,
    WrittenAttribute,
    carries_attributes,
    plain_tensors_of,
    starts_elsewhere,
)

from ...session import Session
from .tensors import is_among, tensors_in


class PlainState:
    """The plain tensors of a model, and those that a first forward pass has changed.

    A hidden state is found, and so is a running mean that is not a buffer. A mask that is computed once, or
    an output that is only stored, does not change the loss of the next step.
    """

    def __init__(self, session: Session) -> None:
        self._step = session.train_step
        self._tensors = plain_tensors_of(session.model)
        self._attributes = WatchedAttributes(session.model)
        self._written: list[WrittenAttribute] = []

    def take(self, saved: Callable[[], Any]) -> None:
        """Keep what a forward pass has changed, before it is restored; `saved` returns what a save has."""
        self._tensors = [one for one in self._tensors if one.is_changed]
        known = {one.path for one in self._tensors}
        self._written = [one for one in self._attributes.written() if one.path not in known]
        if self._tensors or self._written:
            kept = list(tensors_in(saved()))
            self._tensors = [one for one in self._tensors if not is_among(one.current, kept)]
            self._written = [
                one for one in self._written if not all(is_among(inner, kept) for inner in one.tensors)
            ]

    def warnings(self, batch: tuple[Any, ...]) -> Iterator[str]:
        """Yield a warning about tensors that the step updates and uses, and that are in no save."""
        try:
            found = [one for one in self._tensors if carries_attributes(self._step, batch, [one])]
            carried = [*_carried(self._step, batch, self._written)]
        except Exception as error:
            log.debug("the search for tensors that are not buffers: %s: %s", type(error).__name__, error)
            return
        if found or carried:
            yield _warning(found, carried)


def _carried(
    step: TrainStep, batch: tuple[Any, ...], written: Sequence[WrittenAttribute]
) -> Sequence[WrittenAttribute]:
    """Return the attributes that the loss of the next step depends on."""
    if not written or not starts_elsewhere(step, batch, written):
        return ()
    return [one for one in written if _is_missed(step, batch, written, one)] or written


def _is_missed(
    step: TrainStep, batch: tuple[Any, ...], written: Sequence[WrittenAttribute], one: WrittenAttribute
) -> bool:
    """Return whether the others do not suffice: the two parts of an LSTM state need each other."""
    try:
        return starts_elsewhere(step, batch, written, [each for each in written if each is not one])
    except Exception:
        return True


def _warning(found: Sequence[PlainTensor], carried: Sequence[WrittenAttribute]) -> str:
    names = [*(one.path for one in found), *(one.path for one in carried)]
    what = "a plain tensor, which is" if len(names) == 1 else "plain tensors, which are"
    return (
        f"the step updates {' and '.join(map(repr, names))} of the model, {what} not saved: a resumed run "
        f"would continue with {'its' if len(names) == 1 else 'their'} initial value. "
        f"{_remedy(names[0], found[0].tensor if found else carried[0].tensors)}"
    )


def _remedy(path: str, value: Tensor | list[Tensor]) -> str:
    """Return how to register the first of the tensors, with its shape: a load needs it.

    >>> import torch
    >>> _remedy("rnn.h", [torch.ones(1, 4)])
    "Register it as a buffer of its full size, self.register_buffer('h', torch.zeros(1, 4))."
    """
    name = path.rpartition(".")[2]
    if isinstance(value, Tensor):
        return f"Register it as a buffer, self.register_buffer({name!r}, …)."
    shape = ", ".join(map(str, value[0].shape)) or "()"
    if len(value) == 1:
        return (
            f"Register it as a buffer of its full size, self.register_buffer({name!r}, torch.zeros({shape}))."
        )
    return (
        f"Register each of its {len(value)} tensors as a buffer of its full size, "
        f"self.register_buffer('{name}_0', torch.zeros({shape})) and so on."
    )
