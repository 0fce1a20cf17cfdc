"""Match the tensors of two models that have different names by their order."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flodl.core import CheckpointError
from flodl.core.formats import a_type

from .keywords import suggest_keywords
from .matching import check_loadable
from .report import MigrateReport


@suggest_keywords
def load_by_order(stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> MigrateReport:
    """Load tensors in place, the first into the first and so on: all of them or none.

    Both must have the same number of tensors, and each pair the same shape and the same last name (`weight`,
    `bias`). Layers of the same shape are distinguished only by their order; exchanged names raise.

    >>> theirs = {"0.weight": torch.ones(2), "0.bias": torch.zeros(1)}
    >>> print(load_by_order(theirs, {"head.weight": torch.zeros(2), "head.bias": torch.ones(1)}))
    0 unchanged, 2 remapped (0.weight → head.weight, 0.bias → head.bias)
    """
    for what, given in (("state dict", stored), ("model", wanted)):
        if not isinstance(given, Mapping):
            raise CheckpointError(
                f"the tensors of the {what} are {a_type(given)}. Pass tensors by name, such as "
                "model.state_dict()."
            )
    pairs = [*zip(stored, wanted)]
    for number, (old, new) in enumerate(pairs, start=1):
        shapes = tuple(stored[old].shape), tuple(wanted[new].shape)
        if shapes[0] != shapes[1] or old.rpartition(".")[2] != new.rpartition(".")[2]:
            raise CheckpointError(
                f"tensor {number} is {old!r} of shape {shapes[0]} in the state dict, and {new!r} of shape "
                f"{shapes[1]} in the model. Nothing was loaded. The order of the layers must be the same; "
                "otherwise rename the keys, or use migrate_checkpoint with rename={…}."
            )
    if len(stored) != len(wanted):
        extra, who = ([*stored][len(pairs) :], "the model has no more")
        if not extra:
            extra, who = ([*wanted][len(pairs) :], "the state dict has no more")
        raise CheckpointError(
            f"the state dict has {len(stored)} tensors, the model {len(wanted)}: {who} for {extra[0]!r}. "
            "Nothing was loaded. Select the keys that belong to this model."
        )
    _check_crossings(dict(pairs))
    check_loadable({new: stored[old] for old, new in pairs}, wanted, "the state dict")
    with torch.no_grad():
        for old, new in pairs:
            wanted[new].copy_(stored[old])
    return MigrateReport(
        unchanged=tuple(new for old, new in pairs if old == new),
        # A name that the model has elsewhere comes first, since a report shows only some.
        remapped=tuple(
            sorted([each for each in pairs if each[0] != each[1]], key=lambda each: each[0] not in wanted)
        ),
    )


def _check_crossings(new_names: Mapping[str, str]) -> None:
    """Raise if tensors would exchange their names: both models have the names, in another order."""
    for old, new in new_names.items():
        following = new
        # Follow a → b → c until a name that the state dict lacks, or back to the first.
        for _ in new_names:
            if following == old or following not in new_names:
                break
            following = new_names[following]
        if following == old and new != old:
            raise CheckpointError(
                f"{old!r} of the state dict would be loaded into {new!r}, although the model has {old!r}: "
                "its layers are in another order. Nothing was loaded. If names mean the same in both, use "
                "load_state_dict; otherwise rename the keys."
            )
