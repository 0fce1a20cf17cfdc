"""Every family and head computes what transformers computes, gradients included, with every config option."""

import pytest
import torch

from ..reference import batch, error, pair

HEADS = ["base", "seqcls", "tokcls", "qa", "mlm"]
TOLERANCE = {"mlm": 1e-4}

OPTIONS = {
    "bert": [
        {},
        {"hidden_act": "relu"},
        {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "type_vocab_size": 3},
        {"pad_token_id": None},
        {"tie_word_embeddings": False},
    ],
}
CELLS = [(family, head) for family in OPTIONS for head in HEADS]
CASES = [(*cell, options) for cell in CELLS for options in OPTIONS[cell[0]]]


def name(value):
    return ",".join(f"{key}={part}" for key, part in value.items()) if isinstance(value, dict) else str(value)


@pytest.mark.parametrize(("family", "head", "options"), CASES, ids=name)
def test_outputs_and_gradients_equal_those_of_transformers(family, head, options):
    both = pair(family, head, **options)
    both.close(inputs_for(both), TOLERANCE.get(head, 1e-5))


@pytest.mark.parametrize(("family", "head"), CELLS)
def test_in_double_precision_the_difference_is_at_most_1e_10(family, head):
    both = pair(family, head, dtype=torch.float64)
    both.close(inputs_for(both), 1e-10)


@pytest.mark.parametrize(("family", "head"), CELLS)
def test_inputs_may_be_left_out(family, head):
    both = pair(family, head)
    both.close({"input_ids": inputs_for(both)["input_ids"]}, TOLERANCE.get(head, 1e-5))


@pytest.mark.parametrize("family", ["bert"])
def test_the_pooled_first_token_of_a_base_model_is_tagged(family):
    both = pair(family, "base")
    inputs = inputs_for(both)
    both.found(inputs)
    expected = both.reference(**inputs).pooler_output
    assert error(both.graph.tagged("pooler"), expected) <= 1e-5


def inputs_for(both):
    pad = both.config.pad_token_id or 0
    takes_types = "token_type_ids" in both.graph.spec.input_names
    return batch(pad=pad, token_types=both.config.sizes.token_types if takes_types else 0)
