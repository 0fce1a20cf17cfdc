"""Hooks that a run which continues in the middle of an epoch does not call again."""

from __future__ import annotations

import builtins
import dis
from collections.abc import Iterable
from types import CodeType
from typing import Any

from .unsaved import functions_of

# A hook that only prints or measures has nothing to restore.
_HARMLESS = frozenset({*dir(builtins), "time", "perf_counter", "monotonic", "info", "debug"}) - {
    "setattr",
    "delattr",
    "exec",
    "eval",
    "next",
}


def skipped_hooks(hooks: Iterable[Any], epochs: int) -> str:
    """Return a note if hooks may have set something at the start of the epoch that no save contains.

    A program with `on_resume`, or hooks whose state is saved, need none.
    """
    every = [hook for hook in hooks if not type(hook).__module__.startswith("flodl.")]
    if any(functions_of(hook, ("on_resume",)) for hook in every):
        return ""
    names = [
        getattr(hook, "__name__", type(hook).__name__)
        for hook in every
        if not hasattr(hook, "state_dict")
        if any(map(_has_effects, functions_of(hook, ("on_epoch_start",))))
    ]
    if not names:
        return ""
    which = " and ".join(f"the hook {name}" for name in names if name != "on_epoch_start")
    return (
        f"the run continues within epoch {epochs + 1}, so on_epoch_start{which and f' of {which}'} is not "
        "called again for it. Anything it sets outside the model and the optimizer, such as an attribute of "
        "the dataset, is not saved: set it in on_resume(epoch) as well."
    )


def _has_effects(function: Any) -> bool:
    """Return whether a function may change something.

    >>> _has_effects(lambda epoch: print(f"epoch {epoch}")), _has_effects(lambda epoch: data.append(epoch))
    (False, True)
    """
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if not isinstance(code, CodeType):
        return True
    if any(isinstance(inner, CodeType) for inner in code.co_consts):
        return True
    stores = ("STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "STORE_DEREF", "DELETE_ATTR", "DELETE_SUBSCR")
    return not _HARMLESS.issuperset(code.co_names) or any(
        instruction.opname in stores for instruction in dis.get_instructions(code)
    )
