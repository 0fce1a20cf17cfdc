"""Batches whose rows do not continue those before, for a graph that carries values from batch to batch."""

from __future__ import annotations

from typing import Any

from torch import nn

from flodl.core import log
from flodl.data import Loader
from flodl.engine import depends_on_last_step
from flodl.graph import Graph

from ..session import Session


def unrelated_state(session: Session, batch: tuple[Any, ...]) -> str:
    """Return a warning if values carried by a graph pass between unrelated rows, or "".

    Shuffling puts such rows together, and so do several devices that each train some of the batches. A step
    function that resets the state in each batch carries nothing.
    """
    loader = session.loader
    if loader is None or not _has_carried_state(session.model):
        return ""
    on_ranks, policy = len(session.settings.devices) > 1, session.settings.policy
    is_divided = on_ranks and policy != "sync"
    is_continued = on_ranks and session.position.epoch_step > 0
    if not (is_divided or is_continued or _shuffles(loader)):
        return ""
    try:
        if not depends_on_last_step(session.train_step, batch):
            return ""
    except Exception as error:
        log.debug("the search for carried state: %s: %s", type(error).__name__, error)
        return ""
    if is_divided:
        return (
            "the graph carries values from one batch to the next, and with "
            f"policy={policy!r} each device trains only some of the batches: each row "
            "continues the state of an unrelated row. Train with policy='sync' or on one device, with "
            "Loader(data, batch_size, shuffle=False), or call the graph's reset_state() in the step "
            "function."
        )
    if is_continued:
        return (
            "the graph carries values from one batch to the next, and this run resumes mid-epoch: "
            "with several devices, the carried values are not saved, so they are reset here. Resume from "
            "the end of an epoch, or train on one device."
        )
    return (
        "the graph carries values from one batch to the next, and the loader shuffles the data: each row "
        "continues the state of an unrelated row. Pass Loader(data, batch_size, shuffle=False) with rows "
        "that continue those of the batch before, or call the graph's reset_state() in the step function."
    )


def _has_carried_state(model: nn.Module) -> bool:
    return any(isinstance(module, Graph) and module.has_state for module in model.modules())


def _shuffles(loader: Loader) -> bool:
    arguments = loader.arguments()
    is_ordered = arguments["shuffle"] is False or arguments["sampler"] is not None
    # The order of an iterable, such as a DataLoader, is its own.
    has_own_order = not hasattr(arguments["source"], "__getitem__") and arguments["shuffle"] is None
    return not is_ordered and not has_own_order
