"""`Family`: what flodl knows about one architecture, found by the `model_type` of a config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from flodl.core import HFError
from flodl.core.paths import suggestion
from flodl.graph import Graph

from .config import EncoderConfig
from .heads import Head
from .keys import KeyMap

_FOLDER = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "xlm_roberta",
    "distilbert": "distilbert",
    "albert": "albert",
    "deberta-v2": "deberta",
    "modernbert": "modernbert",
}
_CLASS_PREFIX = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "distilbert": "DistilBert",
    "albert": "Albert",
    "deberta-v2": "DebertaV2",
    "modernbert": "ModernBert",
}


@dataclass(frozen=True)
class Family:
    """One architecture: how to read its config, build its graph and name its parameters in a checkpoint."""

    model_type: str
    class_prefix: str
    """The start of its class names in `architectures`: Bert, XLMRoberta, …"""
    heads: tuple[Head, ...]
    read_config: Callable[[Mapping[str, Any]], EncoderConfig]
    build: Callable[[EncoderConfig, Head], Graph]
    keys: Callable[[EncoderConfig, Head], KeyMap]
    initialize: Callable[..., None]
    """`initialize(graph, config, only=None)`: draw random weights, for all parameters or those in `only`."""

    def class_name(self, head: Head) -> str:
        """Return the class name that transformers uses."""
        return self.class_prefix + head.suffix

    def create(self, config: EncoderConfig, head: Head) -> Graph:
        """Build a graph with random weights; raise if the family does not have the head."""
        if head not in self.heads:
            known = ", ".join(known.value for known in self.heads)
            raise HFError(f"{self.model_type} has no head {head.value!r}. It has {known}.")
        graph = self.build(config, head)
        self.initialize(graph, config)
        return graph


def families() -> tuple[str, ...]:
    """Return the names of all families."""
    return tuple(_FOLDER)


def family_of(raw: Mapping[str, Any], model_type: str | None = None) -> Family:
    """Return the family of a config.json; `model_type` overrides what the file says.

    >>> family_of({"model_type": "bert"}).class_name(Head.MASKED_LM)
    'BertForMaskedLM'
    """
    name = model_type or raw.get("model_type") or _type_of_class(raw)
    if name is None:
        raise HFError(
            "config.json has neither model_type nor architectures, so the architecture is unknown. "
            f"Pass model_type=…, one of {', '.join(_FOLDER)}."
        )
    if name not in _FOLDER:
        hint = suggestion(str(name), _FOLDER, known_as="architectures")
        raise HFError(f"the architecture {name!r} is not supported. {hint}")
    family = import_module(f".families.{_FOLDER[name]}", __package__).FAMILY
    assert isinstance(family, Family)
    return family


def head_of(raw: Mapping[str, Any]) -> Head:
    """Return the head that a checkpoint was saved with, from the class name in `architectures`.

    >>> head_of({"architectures": ["BertForTokenClassification"]})
    <Head.TOKEN_CLASSIFICATION: 'tokcls'>
    """
    name = _class_name(raw)
    if name is None or name.endswith("ForPreTraining"):
        return Head.BASE if name is None else Head.MASKED_LM
    for head in Head:
        if name.endswith(head.suffix):
            return head
    known = ", ".join(head.suffix for head in Head)
    raise HFError(
        f"config.json: the architecture {name!r} has a head that flodl does not have. It has {known}."
    )


def _class_name(raw: Mapping[str, Any]) -> str | None:
    names = raw.get("architectures")
    if names is None or names == []:
        return None
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise HFError(f"config.json: architectures is {names!r}. It must be a list of class names.")
    return names[0]


def _type_of_class(raw: Mapping[str, Any]) -> str | None:
    name = _class_name(raw) or ""
    found = [kind for kind, prefix in _CLASS_PREFIX.items() if _belongs(prefix, name)]
    return found[0] if found else None


def _belongs(prefix: str, name: str) -> bool:
    rest = name.removeprefix(prefix)
    return rest != name and rest.startswith(("Model", "For"))
