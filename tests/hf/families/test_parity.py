"""Every family and head computes what transformers computes, gradients included, with every config option."""

import pytest
import torch

from flodl.hf.parity import SMALL_OPTIONS

from ..reference import batch, error, pair

HEADS = ["base", "seqcls", "tokcls", "qa", "mlm"]
TOLERANCE = {"mlm": 1e-4}

BERT = [
    {},
    {"hidden_act": "relu"},
    {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "type_vocab_size": 3},
    {"tie_word_embeddings": False},
]
V3, MODERN = SMALL_OPTIONS["deberta-v2"], SMALL_OPTIONS["modernbert"]
OPTIONS = {
    "bert": [*BERT, {"pad_token_id": None}],
    "roberta": [*BERT, {"pad_token_id": 3}],
    "xlm-roberta": BERT,
    "distilbert": [
        {"hidden_dim": 48},
        {"hidden_dim": 48, "activation": "relu", "sinusoidal_pos_embds": True},
        {"hidden_dim": 48, "tie_word_embeddings": False, "pad_token_id": 2},
    ],
    "deberta-v2": [
        V3,
        {**V3, "pos_att_type": "p2c|c2p", "legacy": False, "hidden_act": "relu"},
        {**V3, "pos_att_type": ["c2p"], "share_att_key": False},
        {**V3, "pos_att_type": ["p2c"], "share_att_key": False, "norm_rel_ebd": "none"},
        {**V3, "pos_att_type": [], "type_vocab_size": 2, "position_biased_input": True},
        {**V3, "share_att_key": False, "position_buckets": -1, "max_relative_positions": 6},
        {**V3, "position_buckets": -1, "max_relative_positions": -1, "tie_word_embeddings": False},
        {**V3, "conv_kernel_size": 3, "conv_act": "gelu", "conv_groups": 2},
        {**V3, "embedding_size": 16, "pooler_hidden_act": "tanh", "pooler_dropout": 0.1, "cls_dropout": 0.2},
        {**V3, "relative_attention": False},
        {"pad_token_id": None},
    ],
    "modernbert": [
        MODERN,
        {**MODERN, "global_attn_every_n_layers": 2, "local_attention": 4, "global_rope_theta": 500.0},
        {**MODERN, "layer_types": ["sliding_attention", "full_attention", "full_attention"]},
        {**MODERN, "attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True},
        {**MODERN, "classifier_pooling": "mean", "classifier_activation": "relu", "decoder_bias": False},
        {**MODERN, "hidden_activation": "silu", "tie_word_embeddings": False, "norm_eps": 1e-3},
        {**MODERN, "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 50.0}}},
    ],
    "albert": [
        SMALL_OPTIONS["albert"],
        {"embedding_size": 16, "hidden_act": "relu", "tie_word_embeddings": False},
        {"embedding_size": 32, "num_hidden_layers": 5, "num_hidden_groups": 2},
        {"embedding_size": 24, "num_hidden_layers": 3, "inner_group_num": 2, "classifier_dropout_prob": 0.3},
        {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 3, "inner_group_num": 2},
    ],
}
CELLS = [(family, head) for family in OPTIONS for head in HEADS]
CASES = [
    pytest.param(*cell, options, marks=[pytest.mark.slow] if index else [])
    for cell in CELLS
    for index, options in enumerate(OPTIONS[cell[0]])
]


def name(value):
    return ",".join(f"{key}={part}" for key, part in value.items()) if isinstance(value, dict) else str(value)


@pytest.mark.parametrize(("family", "head", "options"), CASES, ids=name)
def test_outputs_and_gradients_equal_those_of_transformers(family, head, options):
    both = pair(family, head, **options)
    both.close(inputs_for(both), TOLERANCE.get(head, 1e-5))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "head"), CELLS)
def test_in_double_precision_the_difference_is_at_most_1e_10(family, head):
    both = pair(family, head, dtype=torch.float64, **OPTIONS[family][0])
    # Rotations run in float32 in both libraries, so that gradients are rounded on the way.
    both.close(inputs_for(both), 1e-10, gradients=1e-7 if family == "modernbert" else None)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "head"), CELLS)
def test_inputs_may_be_left_out(family, head):
    both = pair(family, head, **OPTIONS[family][0])
    both.close({"input_ids": inputs_for(both)["input_ids"]}, TOLERANCE.get(head, 1e-5))


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "albert"])
def test_the_pooled_first_token_of_a_base_model_is_tagged(family):
    both = pair(family, "base", **OPTIONS[family][0])
    inputs = inputs_for(both)
    both.found(inputs)
    expected = both.reference(**inputs).pooler_output
    assert error(both.graph.tagged("pooler"), expected) <= 1e-5


def inputs_for(both):
    pad = both.config.pad_token_id or 0
    takes_types = "token_type_ids" in both.graph.spec.input_names
    return batch(pad=pad, token_types=both.config.sizes.token_types if takes_types else 0)
