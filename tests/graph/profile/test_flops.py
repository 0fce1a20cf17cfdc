"""FLOPs of the operations that torch's own counter leaves out."""

import pytest
import torch
from torch import nn

import flodl
from flodl.graph.profile.flops import flop_counter

STEPS, BATCH = 5, 3


def counted(call):
    with flop_counter() as counter, torch.no_grad():
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}])
@pytest.mark.parametrize("has_gradients", [False, True])
def test_a_recurrent_layer_multiplies_each_step_by_all_its_matrices(kind, options, has_gradients):
    layer = kind(4, 8, **options).train(has_gradients)
    matrices = sum(one.numel() for one in layer.parameters() if one.dim() == 2)
    with flop_counter() as counter, torch.set_grad_enabled(has_gradients):
        layer(torch.randn(STEPS, BATCH, 4))
    assert counter.get_total_flops() == 2 * STEPS * BATCH * matrices


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
def test_an_lstm_with_projections_is_counted():
    layer = nn.LSTM(4, 8, proj_size=6)
    matrices = sum(one.numel() for one in layer.parameters() if one.dim() == 2)
    assert counted(lambda: layer(torch.randn(STEPS, BATCH, 4))) == 2 * STEPS * BATCH * matrices


def test_the_summary_has_the_flops_of_recurrent_layers():
    found = flodl.summary(nn.Sequential(nn.LSTM(4, 8)), torch.randn(STEPS, BATCH, 4))
    assert found["0"].flops == found.flops == 2 * STEPS * BATCH * 4 * 8 * (4 + 8)


def test_products_with_vectors_are_counted():
    matrix, vector = torch.randn(6, 4), torch.randn(4)
    assert counted(lambda: matrix @ vector) == 2 * 24
    assert counted(lambda: torch.addmv(torch.zeros(6), matrix, vector)) == 2 * 24
    assert counted(lambda: vector @ vector) == 2 * 4
    assert counted(lambda: torch.addbmm(torch.zeros(2, 5), torch.randn(3, 2, 4), torch.randn(3, 4, 5))) == 240


def test_bilinear_layers_are_counted():
    layer = nn.Bilinear(4, 5, 6)
    assert counted(lambda: layer(torch.randn(3, 4), torch.randn(3, 5))) == 2 * 3 * 4 * 5 * 6
