"""Pooling of token embeddings into one vector, as described by the files of sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flodl.core import HFError
from flodl.core.paths import suggestion

from ..files.json_file import read_json, read_object
from .dense import Dense

# The order in which several modes are concatenated.
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_TRANSFORMERS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Pooling:
    """How a text becomes a vector; without files, the mean over its tokens."""

    modes: tuple[str, ...] = ("mean",)
    dense: tuple[Dense, ...] = ()
    normalize: bool = False
    max_length: int | None = None
    lower_case: bool = False
    include_prompt: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    @classmethod
    def from_directory(cls, root: Path) -> Pooling:
        """Read modules.json and the files that it names; without it, return the default."""
        if not (root / "modules.json").is_file():
            return cls()
        found: dict[str, Any] = {"modes": (), "dense": ()}
        for module in _modules(root / "modules.json"):
            kind = module["type"].rpartition(".")[2]
            folder = _folder(root, module["path"])
            if kind == "Transformer":
                found |= _transformer(folder)
            elif kind == "Pooling":
                found |= _pooling(folder / "config.json")
            elif kind == "Dense" and not found.get("normalize"):
                found["dense"] += (Dense.from_directory(folder),)
            elif kind == "Normalize":
                found["normalize"] = True
            elif kind != "Dropout":
                raise HFError(
                    f"{root / 'modules.json'} contains the module {module['type']!r}, which flodl does not "
                    "support there. Expected Transformer, Pooling, Dense and Normalize, in this order."
                )
        if not found["modes"]:
            raise HFError(f"{root / 'modules.json'} has no pooling module; expected one.")
        return cls(**found, **_prompts(root / "config_sentence_transformers.json"))

    def prompt(self, name: str | None) -> str:
        """Return the text to put in front of each text: the named prompt, or the default one."""
        name = self.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            raise HFError(
                f"the model has no prompt {name!r}. {suggestion(name, self.prompts, known_as='prompts')}"
            )
        return self.prompts[name]

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Pool hidden states [B, S, H] over the tokens of a mask [B, S]; return [B, D].

        >>> hidden = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [9.0, 9.0]]])
        >>> Pooling(modes=("cls", "mean")).pool(hidden, torch.tensor([[1, 1, 0]]))
        tensor([[1., 2., 2., 4.]])
        """
        hidden = hidden if hidden.dtype == torch.float64 else hidden.float()
        pooled = torch.cat([_POOL[mode](hidden, mask) for mode in MODES if mode in self.modes], dim=-1)
        for layer in self.dense:
            pooled = layer.apply(pooled)
        return torch.nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled


def _cls(hidden: Tensor, mask: Tensor) -> Tensor:
    first = mask.argmax(dim=1)
    return hidden[torch.arange(len(hidden), device=hidden.device), first]


def _last(hidden: Tensor, mask: Tensor) -> Tensor:
    last = mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


def _max(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden.masked_fill(mask[..., None] == 0, -1e9).amax(dim=1)


def _sum(hidden: Tensor, weights: Tensor) -> Tensor:
    return (hidden * weights[..., None].to(hidden.dtype)).sum(dim=1)


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    return _sum(hidden, mask) / mask.sum(dim=1, keepdim=True).clamp(min=1e-9)


def _mean_sqrt(hidden: Tensor, mask: Tensor) -> Tensor:
    return _sum(hidden, mask) / mask.sum(dim=1, keepdim=True).clamp(min=1e-9).sqrt()


def _weighted_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    positions = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return _mean(hidden, mask * positions)


_POOL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


def _modules(path: Path) -> Sequence[Mapping[str, str]]:
    modules = read_json(path)
    is_list = isinstance(modules, list) and all(isinstance(module, dict) for module in modules)
    if not is_list or not all(
        isinstance(module.get("type"), str) and isinstance(module.get("path"), str) for module in modules
    ):
        raise HFError(f"{path} is not a list of modules with a type and a path. Download it again.")
    return list(modules)


def _folder(root: Path, path: str) -> Path:
    folder = (root / path).resolve()
    if not folder.is_relative_to(root.resolve()):
        raise HFError(f"{root / 'modules.json'} names the folder {path!r}, which is outside of the model.")
    return folder


def _transformer(folder: Path) -> dict[str, Any]:
    named = (folder / f"sentence_{name}_config.json" for name in _TRANSFORMERS)
    path = next((path for path in named if path.is_file()), folder / "sentence_bert_config.json")
    settings = read_object(path) if path.is_file() else {}
    limit = settings.get("max_seq_length")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise HFError(f"{path}: max_seq_length is {limit!r}; expected an integer of at least 1.")
    return {"max_length": limit, "lower_case": settings.get("do_lower_case") is True}


def _pooling(path: Path) -> dict[str, Any]:
    settings = read_object(path)
    named = settings.get("pooling_mode")
    if named is not None:
        modes = [named] if isinstance(named, str) else named
    else:
        modes = [mode for flag, mode in _FLAGS.items() if settings.get(flag) is True]
        unknown = [key for key in settings if key.startswith("pooling_mode_") and key not in _FLAGS]
        modes += [key for key in unknown if settings[key]]
    if not isinstance(modes, list) or not modes or not all(mode in MODES for mode in modes):
        raise HFError(f"{path} has the pooling modes {modes!r}; expected some of {', '.join(MODES)}.")
    return {"modes": tuple(modes), "include_prompt": settings.get("include_prompt") is not False}


def _prompts(path: Path) -> dict[str, Any]:
    settings = read_object(path) if path.is_file() else {}
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    is_valid = isinstance(prompts, dict) and all(isinstance(text, str) for text in prompts.values())
    if not is_valid or (default is not None and default not in prompts):
        raise HFError(f"{path}: prompts must map names to texts and contain the default prompt {default!r}.")
    return {"prompts": prompts, "default_prompt": default}
