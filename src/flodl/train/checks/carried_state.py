"""Shuffled data for a graph that carries values from one batch to the next."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flodl.core import log
from flodl.core.rng_state import preserve_rng_state
from flodl.data import Loader
from flodl.engine import rehearse, sandbox
from flodl.graph import Graph

from ..session import Session


def shuffled_state(session: Session, batch: tuple[Any, ...]) -> str:
    """Return a warning if values carried by a graph pass between rows that shuffling puts together, or "".

    A step function that resets the state in each batch carries nothing.
    """
    loader = session.loader
    if loader is None or not _shuffles(loader) or not has_carried_state(session.model):
        return ""
    try:
        if not _carries(session, batch):
            return ""
    except Exception as error:
        log.debug("the search for carried state: %s: %s", type(error).__name__, error)
        return ""
    return (
        "the graph carries values from one batch to the next, and the loader shuffles the data: each row "
        "continues the state of an unrelated row. Pass Loader(data, batch_size, shuffle=False) with rows "
        "that continue those of the batch before, or call reset_state() of the graph in the step function."
    )


def has_carried_state(model: nn.Module) -> bool:
    """Return whether a graph of a model carries values from one call to the next."""
    return any(isinstance(module, Graph) and module.has_state for module in model.modules())


def _shuffles(loader: Loader) -> bool:
    arguments = loader.arguments()
    is_ordered = arguments["shuffle"] is False or arguments["sampler"] is not None
    # The order of an iterable, such as a DataLoader, is its own.
    has_own_order = not hasattr(arguments["source"], "__getitem__") and arguments["shuffle"] is None
    return not is_ordered and not has_own_order


def _carries(session: Session, batch: tuple[Any, ...]) -> bool:
    """Return whether a second step on the same batch, from the same random state, has another loss."""
    step, losses = session.train_step, []
    with sandbox(step, *batch):
        for _ in range(2):
            with preserve_rng_state(session.device):
                losses.append(rehearse(step, batch)[0].detach().double())
    return not torch.allclose(losses[0], losses[1], rtol=1e-5, atol=0.0, equal_nan=True)
