"""Fields of a config that have no effect: misspelled ones, and those of another architecture."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from flodl.core import HFError, log

from .registry import Family, families, family_of

# Names for the same in different architectures.
_SAME = (
    ("hidden_size", "dim"),
    ("num_hidden_layers", "n_layers"),
    ("num_attention_heads", "n_heads"),
    ("intermediate_size", "hidden_dim"),
    ("hidden_dropout_prob", "dropout"),
    ("attention_probs_dropout_prob", "attention_dropout"),
    ("classifier_dropout", "classifier_dropout_prob", "cls_dropout", "seq_classif_dropout"),
    ("hidden_act", "activation", "hidden_activation"),
    ("layer_norm_eps", "norm_eps"),
)
# What transformers writes for every architecture, whether the model uses it or not.
_GENERAL = frozenset(
    {
        *("_name_or_path", "architectures", "auto_map", "dtype", "gradient_checkpointing", "model_type"),
        *("torch_dtype", "transformers_version", "use_cache", "problem_type", "num_labels", "id2label"),
        *("label2id", "bos_token_id", "cls_token_id", "eos_token_id", "mask_token_id", "pad_token_id"),
        *("sep_token_id", "unk_token_id", "decoder_start_token_id", "finetuning_task", "initializer_range"),
        *("add_cross_attention", "is_decoder", "is_encoder_decoder", "position_embedding_type"),
        *("pruned_heads", "tie_word_embeddings", "tie_encoder_decoder", "tie_weights_", "type_vocab_size"),
        *("output_attentions", "output_hidden_states", "output_past", "return_dict", "torchscript"),
        *("chunk_size_feed_forward", "cross_attention_hidden_size", "vocab_size", "max_position_embeddings"),
    }
)
# Sizes with which every architecture can be read, to see which names it reads.
_SIZES = {
    "vocab_size": 8,
    "hidden_size": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 4,
    "dim": 4,
    "n_layers": 1,
    "n_heads": 1,
    "hidden_dim": 4,
}
# A config may have fields of your own: only one that is nearly a known name is a mistake.
_SIMILAR = 0.85


class ReadFields(dict[str, Any]):
    """A config that remembers which fields were read.

    >>> fields = ReadFields({"hidden_size": 32})
    >>> fields.get("dropout"), fields.names
    (None, {'dropout'})
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


def warn_about_unread(family: Family, given: Iterable[Any], fields: Iterable[str]) -> None:
    """Warn about names that were `given` for a config with these `fields`, but have no effect."""
    present = {*fields}
    found = [note for name in given if isinstance(name, str) and (note := _note(family, name, present))]
    if found:
        log.warn(f"hf: {family.model_type} ignores fields of the config: {', '.join(found)}")


def _note(family: Family, name: str, present: set[str]) -> str:
    """Return a field that was probably meant to be another, with a suggestion, or "".

    >>> bert = family_of({"model_type": "bert"})
    >>> _note(bert, "dropout", set())
    "'dropout' (did you mean 'hidden_dropout_prob'?)"
    >>> _note(bert, "hidden_dropout_prob", set()), _note(bert, "my_note", set())
    ('', '')
    """
    known = _names_of(family.model_type)
    if name in _GENERAL or name in known:
        return ""
    meant = next((one for same in _SAME if name in same for one in same if one in known), "")
    if meant:
        # A config may have a name of its own and that of another architecture.
        return "" if meant in present else f"{name!r} (did you mean {meant!r}?)"
    if close := difflib.get_close_matches(name, sorted(known), n=1, cutoff=_SIMILAR):
        return f"{name!r} (did you mean {close[0]!r}?)"
    owners = [other for other in families() if name in _names_of(other)]
    return f"{name!r} (a field of {', '.join(owners)})" if owners else ""


@cache
def _names_of(model_type: str) -> frozenset[str]:
    """Return the names that an architecture reads."""
    fields = ReadFields({"model_type": model_type, **_SIZES})
    try:
        family_of(fields).read_config(fields)
    except HFError as error:
        raise AssertionError(f"{model_type} cannot be read with {_SIZES}") from error
    return frozenset(fields.names)
