"""Methods of other libraries that a model does not have: calling one raises an error with what to write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn, TypeVar

from flodl.core import HFError
from flodl.core.formats import a_type

from .calls import HFCallError

C = TypeVar("C", bound=type)

_LOAD = (
    "For the weights of a checkpoint of flodl, write load_checkpoint('model.fdl', model.state_dict()); for a "
    "folder of transformers, AutoModelFor….from_pretrained(folder)."
)
_SAVE = (
    "Write model.export(folder) for a folder that transformers loads, or save_checkpoint('model.fdl', "
    "model.state_dict()) for the weights alone."
)
_TRAIN = (
    "Write Trainer(model, flodl.hf.compute_loss, optimizer=…).fit(model.dataset(texts, labels), epochs=…)."
)
INSTEAD = {
    **dict.fromkeys(("load_checkpoint", "load_weights"), _LOAD),
    **dict.fromkeys(("save_pretrained", "save_checkpoint"), _SAVE),
    "push_to_hub": "Write model.export(folder), and upload the folder with huggingface_hub.",
    "generate": "The models here are encoders, which do not generate text. Write model.predict(texts).",
    "fit": _TRAIN,
    **dict.fromkeys(("freeze", "thaw", "parameters_at"), "It is a method of the graph: model.graph.{}(…)."),
}


def explain_missing(kind: C) -> C:
    """Add a method to a class for each name in `INSTEAD` that it does not have."""
    for name, advice in INSTEAD.items():
        if not hasattr(kind, name):
            setattr(kind, name, _refuse(name, advice.format(name)))
    return kind


def _refuse(name: str, advice: str) -> Callable[..., NoReturn]:
    def method(self: Any, *args: Any, **options: Any) -> NoReturn:
        raise HFCallError(f"{a_type(self)} has no method {name!r}. {advice}")

    method.__name__, method.__doc__ = name, f"Raise an error: {advice}"
    return method


def check_state(state: Any, own: Collection[str]) -> None:
    """Raise if something else than the state of a model is loaded; otherwise torch decides.

    >>> check_state({"bert.embeddings.weight": 0}, ["graph.embeddings.weight"])
    Traceback (most recent call last):
    flodl.core.errors.HFError: none of the 1 tensors in the state_dict has a name of this model: ...
    """
    if not isinstance(state, Mapping):
        raise HFCallError(f"load_state_dict got {a_type(state)}; expected a state_dict. {_LOAD}")
    if isinstance(state.get("model"), Mapping):
        raise HFError(
            f"the state_dict has the parts {', '.join(map(str, state))}: it is that of a whole run. Pass the "
            "part of the model: model.load_state_dict(parts['model'])."
        )
    if state and not any(name in own for name in state):
        raise HFError(
            f"none of the {len(state)} tensors in the state_dict has a name of this model: the first is "
            f"{next(iter(state))!r}, and those of the model begin with {next(iter(own))!r}. Weights of "
            "transformers are loaded with AutoModelFor….from_pretrained(folder)."
        )
