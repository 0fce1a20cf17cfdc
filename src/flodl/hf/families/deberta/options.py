"""What only DeBERTa's config.json has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flodl.core import HFError

from ...config import Dropouts, EncoderConfig, Fields, bert_sizes


@dataclass(frozen=True)
class Options:
    """How positions enter the model, the optional convolution, and the pooler."""

    absolute_positions: bool
    relative_attention: bool
    terms: tuple[str, ...]
    shares_projections: bool
    normalizes_relative: bool
    num_buckets: int
    max_distance: int
    conv_kernel: int
    conv_groups: int
    conv_activation: str
    pooler_activation: str
    pooler_dropout: float
    legacy: bool

    @property
    def span(self) -> int:
        """The number of distances to each side that have an embedding."""
        return self.num_buckets if self.num_buckets > 0 else self.max_distance


def read_config(raw: Mapping[str, Any]) -> EncoderConfig:
    """Read the config.json of a DeBERTa v2 or v3 checkpoint."""
    fields = Fields(raw)
    fields.refuse_decoders()
    sizes = bert_sizes(fields, token_types=0)
    fields.refuse("attention_head_size", sizes.hidden // sizes.heads, why="the output layer would not fit")
    fields.refuse("pooler_hidden_size", sizes.hidden, why="the pooler would not fit the encoder")
    hidden = fields.probability("hidden_dropout_prob", 0.1)
    no_dropout = raw.get("cls_dropout") is None
    options = _options(fields, sizes.positions)
    if not options.legacy and sizes.embedding != sizes.hidden:
        raise HFError(
            f"config.json: with legacy false, embedding_size ({sizes.embedding}) must be hidden_size "
            f"({sizes.hidden}), because the masked-LM head multiplies by the word embedding."
        )
    return EncoderConfig(
        model_type="deberta-v2",
        sizes=sizes,
        dropout=Dropouts(
            hidden=hidden,
            attention=fields.probability("attention_probs_dropout_prob", 0.1),
            classifier=hidden if no_dropout else fields.probability("cls_dropout", hidden),
        ),
        activation=fields.text("hidden_act", "gelu"),
        norm_eps=fields.number("layer_norm_eps", 1e-7),
        pad_token_id=fields.token_id("pad_token_id", 0),
        pooler=False,
        options=options,
        **fields.shared(),
    )


def _options(fields: Fields, positions: int) -> Options:
    kernel = fields.integer("conv_kernel_size", 0, least=-1)
    if kernel > 0 and kernel % 2 == 0:
        raise fields.error("conv_kernel_size", kernel, "odd, so that the length stays the same")
    max_distance = fields.integer("max_relative_positions", -1, least=-1)
    max_distance = max_distance if max_distance > 0 else positions
    num_buckets = fields.integer("position_buckets", -1, least=-1)
    if num_buckets > 0 and not 1 < num_buckets // 2 < max_distance - 1:
        raise fields.error("position_buckets", num_buckets, f"from 4 to {2 * max_distance - 3}")
    return Options(
        absolute_positions=fields.flag("position_biased_input", True),
        relative_attention=fields.flag("relative_attention", False),
        terms=_terms(fields),
        shares_projections=fields.flag("share_att_key", False),
        normalizes_relative="layer_norm" in _words(fields.text("norm_rel_ebd", "none")),
        num_buckets=num_buckets,
        max_distance=max_distance,
        conv_kernel=max(kernel, 0),
        conv_groups=fields.integer("conv_groups", 1),
        conv_activation=fields.text("conv_act", "tanh"),
        pooler_activation=fields.text("pooler_hidden_act", "gelu"),
        pooler_dropout=fields.probability("pooler_dropout", 0.0),
        legacy=fields.flag("legacy", True),
    )


def _terms(fields: Fields) -> tuple[str, ...]:
    value = fields.raw.get("pos_att_type")
    words = _words(value) if isinstance(value, str) else value or []
    if not isinstance(words, list) or not set(map(str, words)) <= {"c2p", "p2c", "", "none"}:
        raise fields.error("pos_att_type", value, "a list of 'c2p' and 'p2c', or both joined by '|'")
    return tuple(term for term in ("c2p", "p2c") if term in words)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.lower().split("|")]
