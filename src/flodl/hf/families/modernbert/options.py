"""What only ModernBERT's config.json has, in its old and new spellings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flodl.core import HFError

from ...config import Dropouts, EncoderConfig, Fields, Sizes, check_heads

_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Options:
    """Which layers are local, how positions rotate, which linear layers have a bias, and the heads."""

    is_local: tuple[bool, ...]
    reach: int
    theta: float
    local_theta: float
    attention_bias: bool
    mlp_bias: bool
    norm_bias: bool
    decoder_bias: bool
    classifier_bias: bool
    classifier_activation: str
    classifier_pooling: str
    embedding_dropout: float
    mlp_dropout: float
    initializer_cutoff: float


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Read the config.json of a ModernBERT checkpoint."""
    fields = Fields(raw)
    fields.refuse_decoders()
    sizes = check_heads(
        Sizes(
            vocab=fields.integer("vocab_size"),
            hidden=fields.integer("hidden_size"),
            layers=fields.integer("num_hidden_layers"),
            heads=fields.integer("num_attention_heads"),
            intermediate=fields.integer("intermediate_size"),
            positions=fields.integer("max_position_embeddings", 8192),
        )
    )
    width = sizes.hidden // sizes.heads
    fields.refuse("head_dim", width, why="it must be hidden_size / num_attention_heads")
    if width % 2:
        raise HFError(f"config.json: heads of width {width} cannot be rotated. The width must be even.")
    return EncoderConfig(
        model_type="modernbert",
        sizes=sizes,
        dropout=Dropouts(
            attention=fields.probability("attention_dropout", 0.0),
            classifier=fields.probability("classifier_dropout", 0.0),
        ),
        activation=fields.text("hidden_activation", "gelu"),
        norm_eps=fields.number("norm_eps", 1e-5),
        pad_token_id=fields.token_id("pad_token_id", 50283),
        pooler=False,
        options=_options(fields, sizes),
        **fields.shared(),
    )


def _options(fields: Fields, sizes: Sizes) -> Options:
    pooling = fields.text("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise fields.error("classifier_pooling", pooling, "'cls' or 'mean'")
    theta = _theta(fields, "full_attention", "global_rope_theta", 160_000.0)
    no_cutoff = "initializer_cutoff_factor" in fields.raw and fields.raw["initializer_cutoff_factor"] is None
    return Options(
        is_local=_local_layers(fields, sizes.layers),
        reach=fields.integer("local_attention", 128) // 2,
        theta=theta,
        local_theta=_theta(fields, "sliding_attention", "local_rope_theta", 10_000.0, null=theta),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        norm_bias=fields.flag("norm_bias", False),
        decoder_bias=fields.flag("decoder_bias", True),
        classifier_bias=fields.flag("classifier_bias", False),
        classifier_activation=fields.text("classifier_activation", "gelu"),
        classifier_pooling=pooling,
        embedding_dropout=fields.probability("embedding_dropout", 0.0),
        mlp_dropout=fields.probability("mlp_dropout", 0.0),
        initializer_cutoff=3.0 if no_cutoff else fields.number("initializer_cutoff_factor", 2.0),
    )


def _local_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        every = fields.integer("global_attn_every_n_layers", 3)
        return tuple(index % every != 0 for index in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers or not set(map(str, kinds)) <= set(_TYPES):
        raise fields.error("layer_types", kinds, f"a list of {layers} names, each {' or '.join(_TYPES)}")
    return tuple(kind == "sliding_attention" for kind in kinds)


def _theta(fields: Fields, kind: str, old: str, default: float, null: float | None = None) -> float:
    """Read the base of the rotation, under its new name or its old one; an old null means `null`."""
    fields.refuse("rope_scaling", {}, why="only the default rotation is supported")
    ropes = fields.raw.get("rope_parameters") or {}
    rope = ropes.get(kind) if isinstance(ropes, Mapping) else ropes
    if rope is not None and not isinstance(rope, Mapping):
        raise fields.error("rope_parameters", ropes, "an object for each type of layer")
    inner = Fields(rope or {})
    inner.refuse("rope_type", "default", why="only the default rotation is supported")
    if inner.raw.get("rope_theta") is not None:
        return inner.number("rope_theta")
    if null is not None and old in fields.raw and fields.raw[old] is None:
        return null
    return fields.number(old, default)
