"""`KeyMap`: the names of a graph's parameters in a checkpoint, and back.

A checkpoint is accepted in every spelling that transformers has used; it is written in the current one:

- `LayerNorm.gamma` and `LayerNorm.beta` are read as `LayerNorm.weight` and `LayerNorm.bias`;
- keys of the encoder may have the family's prefix (`bert.`) or not; files with a head are written with it;
- tied weights are stored once, under the name of the word embedding; a copy is reported as a duplicate;
- buffers such as `position_ids` and the weights of other heads are dropped, with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from flodl.core import HFError

from .config import EncoderConfig

Rules = Mapping[str, str]
CLASSIFIERS: Rules = {"classifier": "classifier", "qa_outputs": "qa_outputs"}

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_OLD_NORM = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_BUFFERS = ("position_ids", "token_type_ids", "inv_freq")
_OTHER_HEADS = re.compile(
    r"(?:\w+\.)?(?:cls|classifier|pre_classifier|qa_outputs|lm_head|lm_predictions|mask_predictions|predictions"
    r"|sop_classifier|vocab_transform|vocab_layer_norm|vocab_projector|pooler|head|decoder)\."
)


@dataclass(frozen=True)
class LoadPlan:
    """Which tensor of a checkpoint goes where; made from names alone, before any tensor is read."""

    sources: Mapping[str, str]
    """Name in the graph → key in the checkpoint."""
    missing: Mapping[str, str]
    """Name in the graph → the key that the checkpoint should have."""
    unexpected: tuple[str, ...] = ()
    """Keys that no model of this family has."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Key → why it is not loaded."""
    duplicates: Mapping[str, str] = field(default_factory=dict)
    """Key of a tied weight → the key of the same weight that is loaded; both tensors must be equal."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Key → its current spelling."""


@dataclass(frozen=True)
class KeyMap:
    """The names of one family with one head.

    Rules map the modules of the graph (or single parameters) to those of the checkpoint; `*` is a number.
    """

    prefix: str
    encoder: Rules
    head: Rules = field(default_factory=dict)
    tied: Rules = field(default_factory=dict)
    """Redundant key → the key that owns the tensor, both as they are written."""
    is_base: bool = False
    aliases: Rules = field(default_factory=dict)
    """Key of another version of the family → the key as it is written."""

    def key_of(self, name: str) -> str:
        """Return the key of a parameter as transformers writes it."""
        found = _translate(name, self.head)
        if found is not None:
            return found
        found = _translate(name, self.encoder)
        if found is None:
            raise HFError(
                f"no checkpoint key is known for the parameter {name!r} of the graph. This is a bug in flodl."
            )
        return found if self.is_base else f"{self.prefix}.{found}"

    def plan(self, graph: nn.Module, checkpoint_keys: Iterable[str]) -> LoadPlan:
        """Match the keys of a checkpoint with the parameters of a graph."""
        wanted = {self.key_of(name): name for name, _ in named_tensors(graph)}
        sources: dict[str, str] = {}
        copies: dict[str, str] = {}
        dropped: dict[str, str] = {}
        renamed: dict[str, str] = {}
        unexpected: list[str] = []
        for key in checkpoint_keys:
            current = self._current(key, wanted)
            if current != key:
                renamed[key] = current
            if current in wanted:
                self._take(sources, wanted[current], key)
            elif current in self.tied:
                copies[key] = self.tied[current]
            elif key.rpartition(".")[2] in _BUFFERS:
                dropped[key] = "a buffer that is computed, not loaded"
            elif _OTHER_HEADS.match(key):
                dropped[key] = "belongs to a head that this model does not have"
            else:
                unexpected.append(key)
        duplicates = self._place_copies(copies, wanted, sources)
        missing = {name: key for key, name in wanted.items() if name not in sources}
        return LoadPlan(sources, missing, tuple(unexpected), dropped, duplicates, renamed)

    def to_checkpoint(self, graph: nn.Module) -> dict[str, Tensor]:
        """Return the tensors under the keys that transformers writes, each tied weight once."""
        return {self.key_of(name): tensor.detach() for name, tensor in named_tensors(graph)}

    def _current(self, key: str, wanted: Mapping[str, str]) -> str:
        """Return the current spelling of a key."""
        for old, new in _OLD_NORM.items():
            if key.endswith(old):
                key = key.removesuffix(old) + new
        key = self.aliases.get(key, key)
        bare = key.removeprefix(f"{self.prefix}.")
        for spelling in (key, bare, f"{self.prefix}.{bare}"):
            if spelling in wanted or spelling in self.tied:
                return spelling
        return key

    def _take(self, sources: dict[str, str], name: str, key: str) -> None:
        if name in sources:
            raise HFError(
                f"the checkpoint has two tensors for one parameter: {sources[name]!r} and {key!r}. "
                "Remove one of them from the file."
            )
        sources[name] = key

    def _place_copies(
        self, copies: Mapping[str, str], wanted: Mapping[str, str], sources: dict[str, str]
    ) -> dict[str, str]:
        """Load a tied weight from its copy if the owner is absent; return the redundant copies."""
        duplicates = {}
        for key, owner in copies.items():
            name = wanted[owner]
            if sources.setdefault(name, key) != key:
                duplicates[key] = sources[name]
        return duplicates


def masked_lm_rules(transform: str, norm: str, owner: str, config: EncoderConfig) -> Rules:
    """Name the parts of a masked-LM head; untied, the bias that is used belongs to the decoder."""
    return {
        "lm_head.linear_1": transform,
        "lm_head.layernorm_1": norm,
        "lm_head.decoder_1.weight": f"{owner}.decoder.weight",
        "lm_head.decoder_1.bias": f"{owner}.bias" if config.tied else f"{owner}.decoder.bias",
        "lm_head.decoder_1.spare_bias": f"{owner}.bias",
    }


def tied_decoder(owner: str, word: str, config: EncoderConfig) -> Rules:
    """Name the redundant copies that a tied decoder may have in a checkpoint."""
    redundant = {f"{owner}.decoder.weight": word, f"{owner}.decoder.bias": f"{owner}.bias"}
    return redundant if config.tied else {}


def named_tensors(graph: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield what a checkpoint stores: parameters and persistent buffers, shared ones once.

    >>> layer = nn.Linear(2, 2)
    >>> [name for name, _ in named_tensors(nn.Sequential(layer, layer))]
    ['0.weight', '0.bias']
    """
    seen = set()
    for name, tensor in graph.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def _translate(name: str, rules: Rules) -> str | None:
    """Apply the rule for a parameter, or for its module."""
    numbers = _NUMBER.findall(name)
    pattern = _NUMBER.sub("*", name)
    module, _, leaf = pattern.rpartition(".")
    if pattern in rules:
        found = rules[pattern]
    elif module in rules:
        found = f"{rules[module]}.{leaf}"
    else:
        return None
    for number in numbers:
        found = found.replace("*", number, 1)
    return found
