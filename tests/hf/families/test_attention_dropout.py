"""Attention dropout is an `nn.Dropout` of the model, like every other dropout."""

import pytest
import torch
from torch import nn

from .test_models import FAMILIES, WITHOUT_DROPOUT, create
from .test_packed import packed, padded, run

ONLY_OF_ATTENTION = {**WITHOUT_DROPOUT, "attention_probs_dropout_prob": 0.5, "attention_dropout": 0.5}


def is_random(graph, batch):
    with torch.no_grad():
        return not torch.equal(*run(graph, batch), *run(graph, batch))


def dropouts_of(graph):
    return [part for part in graph.modules() if isinstance(part, nn.Dropout)]


@pytest.mark.parametrize("inputs_of", [padded, packed])
@pytest.mark.parametrize("family", FAMILIES)
def test_setting_every_nn_dropout_to_0_turns_attention_dropout_off(family, inputs_of):
    graph = create(family, **ONLY_OF_ATTENTION).train()
    batch = inputs_of(graph)
    assert is_random(graph, batch)
    for part in dropouts_of(graph):
        part.p = 0.0
    assert not is_random(graph, batch)


@pytest.mark.parametrize("family", FAMILIES)
def test_training_mode_of_every_nn_dropout_turns_attention_dropout_on_in_an_evaluated_model(family):
    graph = create(family, **ONLY_OF_ATTENTION).eval()
    batch = padded(graph)
    assert not is_random(graph, batch)
    for part in dropouts_of(graph):
        part.train()
    assert is_random(graph, batch)


def test_nn_identity_in_place_of_attention_dropout_drops_nothing():
    graph = create("bert", **ONLY_OF_ATTENTION).train()
    for part in [*graph.modules()]:
        for name, child in part.named_children():
            if isinstance(child, nn.Dropout):
                setattr(part, name, nn.Identity())
    assert not is_random(graph, padded(graph))
