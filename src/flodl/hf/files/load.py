"""Loading weights into a graph: checked before anything is built, and loaded completely or not at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from flodl.core import GraphError, HFError
from flodl.graph import Graph

from ..assignment import assign
from ..config import EncoderConfig
from ..heads import Head
from ..keys import KeyMap, LoadPlan, named_tensors
from ..registry import Family
from .report import LoadReport
from .skeleton import without_values
from .weights import StoredTensor, Weights

_MAX_SIZE = 2**24  # of what no tensor shows
_LAYER = re.compile(r"\blayers?\.(\d+)\.")


@dataclass(frozen=True)
class Stored:
    """How the source stores each tensor, under the keys that an export writes: for an equal export."""

    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    shards: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """A graph with the weights of a checkpoint."""

    graph: Graph
    config: EncoderConfig
    report: LoadReport
    stored: Stored
    new: tuple[str, ...] = ()


def load_graph(
    family: Family,
    config: EncoderConfig,
    head: Head,
    weights: Weights,
    *,
    source: str,
    dtype: torch.dtype | None,
    device: torch.device,
    seed: int,
    may_resize_head: bool = False,
    may_drop_layers: bool = False,
) -> Loaded:
    """Build a graph and load a checkpoint; what a head or pooler lacks is initialized with the seed.

    With `may_resize_head`, a classifier with another number of labels is initialized too. With
    `may_drop_layers`, the checkpoint may have more layers than the config. Tied weights that
    differ in the checkpoint are loaded separately, as transformers does.
    """
    check_size(config, weights)
    graph, keys, plan = _plan(family, config, head, weights)
    notes: tuple[str, ...] = ()
    if config.tied and (pair := _differing_pair(plan, weights)):
        notes = (f"{pair[0]} and {pair[1]} differ, so they are not tied",)
        config = replace(config, tied=False, raw={**config.raw, "tie_word_embeddings": False})
        pairs = keys.tied
        graph, keys, plan = _plan(family, config, head, weights)
        plan = _with_other_pairs(plan, keys, pairs)
    wanted = dict(named_tensors(graph))
    if may_resize_head:
        plan = _without_resized_head(plan, keys, wanted, weights)
    _check(plan, keys, wanted, weights)
    if not may_drop_layers:
        _check_layers(plan, config, weights)
    chosen = dtype or widest(weights.tensors[key].dtype for key in plan.sources.values())
    values = {name: _read(weights, key, chosen, device) for name, key in plan.sources.items()}
    for name in plan.missing:
        # On the CPU, so that the seed gives the same values on every device.
        values[name] = torch.zeros(wanted[name].shape, dtype=chosen)
    assign(graph, values)
    if plan.missing:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            family.initialize(graph, config, only=set(plan.missing))
    graph.to(device)  # new parameters, and tables that are computed
    return Loaded(
        graph, config, _report(source, plan, seed, notes), _stored(plan, keys, weights), tuple(plan.missing)
    )


def _plan(
    family: Family, config: EncoderConfig, head: Head, weights: Weights
) -> tuple[Graph, KeyMap, LoadPlan]:
    try:
        with without_values():
            graph = family.build(config, head)
    except (GraphError, ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        # Checks of the config cannot foresee everything that torch refuses.
        raise HFError(f"config.json describes a model that cannot be built: {error}") from error
    keys = family.keys(config, head)
    try:
        return graph, keys, keys.plan(graph, weights.tensors)
    except HFError as error:
        raise HFError(f"{weights.path}: {error.message}") from None


def _with_other_pairs(plan: LoadPlan, keys: KeyMap, pairs: Mapping[str, str]) -> LoadPlan:
    """Load what is missing from the tensor that it would be tied to: one pair differs, others do not."""
    others = {**pairs, **{owner: key for key, owner in pairs.items()}}
    found = {keys.key_of(name): key for name, key in plan.sources.items()}
    copied = {name: found[others[key]] for name, key in plan.missing.items() if others.get(key) in found}
    missing = {name: key for name, key in plan.missing.items() if name not in copied}
    return replace(plan, sources={**plan.sources, **copied}, missing=missing)


def _report(source: str, plan: LoadPlan, seed: int, notes: tuple[str, ...]) -> LoadReport:
    copies = {key: f"tied to {owner}, which is the same" for key, owner in plan.duplicates.items()}
    return LoadReport(
        source=source,
        loaded=tuple(dict.fromkeys(plan.sources.values())),
        missing=tuple(plan.missing.values()),
        unexpected=plan.unexpected,
        dropped={**plan.dropped, **copies},
        renamed=plan.renamed,
        notes=notes,
        seed=seed if plan.missing else None,
    )


def _stored(plan: LoadPlan, keys: KeyMap, weights: Weights) -> Stored:
    names = {keys.key_of(name): key for name, key in plan.sources.items()}
    shards = weights.shards
    return Stored(
        {name: weights.tensors[key].dtype for name, key in names.items()},
        {name: shards[key] for name, key in names.items()} if shards else {},
    )


def _differing_pair(plan: LoadPlan, weights: Weights) -> tuple[str, str] | None:
    """Return a tied key and its owner if the checkpoint has different values for them."""
    for key, owner in plan.duplicates.items():
        first, second = weights.tensors[key], weights.tensors[owner]
        if (first.shape, first.dtype) != (second.shape, second.dtype):
            return key, owner
        if not torch.equal(weights.read(key), weights.read(owner)):
            return key, owner
    return None


def widest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """Return the floating-point type that holds the values of all of these.

    >>> widest([torch.float16, torch.int64, torch.bfloat16])
    torch.float32
    """
    floats = {dtype for dtype in dtypes if dtype.is_floating_point}
    if not floats:
        return torch.float32
    result = floats.pop()
    for dtype in floats:
        result = torch.promote_types(result, dtype)
    return result


def check_size(config: EncoderConfig, weights: Weights) -> None:
    """Raise if the config claims layers or sizes that the weights cannot have, before building anything."""
    largest = max((size for stored in weights.tensors.values() for size in stored.shape), default=0)
    sizes = config.sizes
    for name, size, limit in (
        ("the vocabulary", sizes.vocab, largest),
        ("the hidden size", sizes.hidden, largest),
        ("the intermediate size", sizes.intermediate, largest if sizes.layers else _MAX_SIZE),
        ("the embedding size", sizes.embedding, largest),
        # Not every family has a table of these.
        ("the number of positions", sizes.positions, max(largest, _MAX_SIZE)),
        ("the number of token types", sizes.token_types, max(largest, _MAX_SIZE)),
    ):
        if size > limit:
            raise HFError(
                f"config.json says that {name} is {size}, but the largest size in {weights.path} is "
                f"{largest}. The files belong to different models."
            )
    for field_name in ("max_relative_positions", "position_buckets"):
        value = config.raw.get(field_name)
        if isinstance(value, int | float) and value > _MAX_SIZE:
            raise HFError(f"config.json says that {field_name} is {value}; expected at most {_MAX_SIZE}.")
    num_values = sum(max(1, len(stored.shape)) for stored in weights.tensors.values())
    inside = config.raw.get("inner_group_num")  # of ALBERT: layers that are repeated together
    layers = max(sizes.layers, inside if isinstance(inside, int) else 0)
    if layers > 1000 + num_values:
        raise HFError(
            f"config.json says that the model has {layers} layers, but {weights.path} has "
            f"{len(weights.tensors)} tensors. The files belong to different models."
        )


def is_optional(key: str, keys: KeyMap) -> bool:
    """Return whether a checkpoint without this key can be used: it belongs to a head or a pooler."""
    return "pooler" in key.split(".") or not (keys.is_base or key.startswith(f"{keys.prefix}."))


def _without_resized_head(
    plan: LoadPlan, keys: KeyMap, wanted: Mapping[str, Tensor], weights: Weights
) -> LoadPlan:
    """Move the tensors of a head with other sizes from those to load to those to initialize."""
    sources, missing, dropped = dict(plan.sources), dict(plan.missing), dict(plan.dropped)
    for name, key in plan.sources.items():
        shape, current = weights.tensors[key].shape, keys.key_of(name)
        if shape != tuple(wanted[name].shape) and is_optional(current, keys):
            del sources[name]
            missing[name] = current
            dropped[key] = f"its shape is {shape}, and num_labels={wanted[name].shape[0]} was requested"
    ordered = {name: missing[name] for name in wanted if name in missing}
    return replace(plan, sources=sources, missing=ordered, dropped=dropped)


def _check(plan: LoadPlan, keys: KeyMap, wanted: Mapping[str, Tensor], weights: Weights) -> None:
    for name, key in plan.sources.items():
        _check_tensor(key, weights.tensors[key], wanted[name])
    lacking = [key for key in plan.missing.values() if not is_optional(key, keys)]
    if lacking:
        shown = ", ".join(lacking[:4]) + (f", … {len(lacking) - 4} more" if len(lacking) > 4 else "")
        raise HFError(
            f"{weights.path} has no tensor {shown}. The config describes a model with these; check that both "
            "files belong to the same model, and the model_type."
        )


def _check_layers(plan: LoadPlan, config: EncoderConfig, weights: Weights) -> None:
    for key in plan.unexpected:
        found = _LAYER.search(key)
        if found and int(found[1]) >= config.sizes.layers:
            raise HFError(
                f"{weights.tensors[key].path} has the tensor {key!r}, but config.json describes a model with "
                f"{config.sizes.layers} layers. Check that both files belong to the same model. To use only "
                "the first layers, pass config={…} with their number."
            )


def _check_tensor(key: str, stored: StoredTensor, target: Tensor) -> None:
    expected = tuple(target.shape)
    if stored.shape != expected:
        is_count = stored.shape[1:] == expected[1:] and stored.shape[:1] != expected[:1]
        hint = ", or pass num_labels=… for a new head" if is_count and "class" in key else ""
        raise HFError(
            f"{stored.path}: the tensor {key!r} has shape {stored.shape}; config.json describes a model with "
            f"shape {expected}. Check that both files belong to the same model{hint}."
        )
    if not stored.dtype.is_floating_point or stored.dtype.itemsize == 1:
        raise HFError(
            f"{stored.path}: the tensor {key!r} has the type {stored.dtype}; expected float32, float16, "
            "bfloat16 or float64. Quantized models are not supported."
        )


def _read(weights: Weights, key: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    stored = weights.tensors[key]
    # A copy: the file stays mapped only while it is open.
    return torch.empty(stored.shape, dtype=dtype, device=device).copy_(weights.read(key))
