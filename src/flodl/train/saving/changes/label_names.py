"""The names of the classes that a model predicts: saved weights belong to their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from flodl.core import TrainError


def label_names_of(model: nn.Module) -> list[str] | None:
    """Return the names of the classes of a model that knows them, as those of `flodl.hf` do."""
    labels = getattr(getattr(model, "config", None), "labels", None)
    if not isinstance(labels, tuple) or not labels or not all(isinstance(name, str) for name in labels):
        return None
    return list(labels)


def check_label_names(saved: Sequence[str] | None, model: nn.Module) -> None:
    """Raise if the model has the labels of the saved run in another order."""
    own = label_names_of(model)
    if saved and own and own != [*saved] and sorted(own) == sorted(saved):
        raise TrainError(
            f"the saved run predicts {listed_names(saved)}, and this model has the same labels in another "
            f"order, {listed_names(own)}: every prediction would get the name of another class. Nothing was "
            f"loaded. Load the model with labels={[*saved]!r:.300}, or choose a different checkpoint_dir."
        )


def changed_label_names(saved: Sequence[str] | None, model: nn.Module) -> Iterator[str]:
    """Describe labels with other names."""
    own = label_names_of(model)
    if saved and own and own != [*saved]:
        yield f"the labels of the model are now {listed_names(own)}, were {listed_names(saved)}"


def listed_names(names: Sequence[str]) -> str:
    """Return some names in their order.

    >>> listed_names(["a", "b"])
    "['a', 'b']"
    """
    shown = [*map(repr, names[:8])] + ["…"] * (len(names) > 8)
    return f"[{', '.join(shown)}]"
