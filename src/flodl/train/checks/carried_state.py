"""Shuffled data for a graph that carries values from one batch to the next."""

from __future__ import annotations

from typing import Any

from torch import nn

from flodl.core import log
from flodl.data import Loader
from flodl.engine import depends_on_last_step
from flodl.graph import Graph

from ..session import Session


def shuffled_state(session: Session, batch: tuple[Any, ...]) -> str:
    """Return a warning if values carried by a graph pass between rows that shuffling puts together, or "".

    A step function that resets the state in each batch carries nothing.
    """
    loader = session.loader
    if loader is None or not _shuffles(loader) or not _has_carried_state(session.model):
        return ""
    try:
        if not depends_on_last_step(session.train_step, batch):
            return ""
    except Exception as error:
        log.debug("the search for carried state: %s: %s", type(error).__name__, error)
        return ""
    return (
        "the graph carries values from one batch to the next, and the loader shuffles the data: each row "
        "continues the state of an unrelated row. Pass Loader(data, batch_size, shuffle=False) with rows "
        "that continue those of the batch before, or call reset_state() of the graph in the step function."
    )


def _has_carried_state(model: nn.Module) -> bool:
    return any(isinstance(module, Graph) and module.has_state for module in model.modules())


def _shuffles(loader: Loader) -> bool:
    arguments = loader.arguments()
    is_ordered = arguments["shuffle"] is False or arguments["sampler"] is not None
    # The order of an iterable, such as a DataLoader, is its own.
    has_own_order = not hasattr(arguments["source"], "__getitem__") and arguments["shuffle"] is None
    return not is_ordered and not has_own_order
