"""Tensors that are plain attributes are in no file, so their values are part of what a graph computes."""

import types

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from flodl import FlowBuilder


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.factor = factor

    def forward(self, x):
        return self.linear(x)


def scaled(factor):
    return FlowBuilder(Scale(factor)).build()


LARGE = torch.zeros(3 << 20)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor(2.0), torch.tensor(3.0)),
        (torch.tensor(2.0), torch.tensor(2)),
        ([torch.tensor(2.0)], [torch.tensor(3.0)]),
        ({"a": (1, torch.tensor([True]))}, {"a": (1, torch.tensor([False]))}),
        (LARGE, torch.ones_like(LARGE)),
        (torch.tensor([1j]), torch.tensor([1j]).conj()),
        (torch.tensor([1.0]).bfloat16(), torch.tensor([2.0]).bfloat16()),
    ],
)
def test_the_values_of_tensors_that_are_attributes_count(one, other, tmp_path):
    model = scaled(one)
    model.save_checkpoint(tmp_path / "model.fdl")
    assert scaled(one).load_checkpoint(tmp_path / "model.fdl").same_function
    assert not scaled(other).load_checkpoint(tmp_path / "model.fdl").same_function


def test_other_forms_of_tensors_can_be_hashed():
    itself = [torch.ones(2)]
    itself.append(itself)
    for value in (torch.ones(0), torch.ones(2, device="meta"), torch.ones(2, 2).to_sparse(), itself):
        assert scaled(value).structural_hash == scaled(value).structural_hash


def test_tensors_that_follow_from_weights_do_not_count():
    def build(function):
        model = Scale(2.0)
        function(model)
        return FlowBuilder(model).build().structural_hash

    def keep_weight(model):
        model.factor = model.linear.weight.detach()
        model.weights = [model.linear.weight]

    assert build(keep_weight) == build(keep_weight)
    pruned = [lambda model: prune.l1_unstructured(model.linear, "weight", 0.5)]
    pruned.append(lambda model: torch.nn.utils.spectral_norm(model.linear))
    for function in pruned:
        assert build(function) == build(function)


@pytest.mark.parametrize("is_method", [True, False])
def test_a_forward_that_is_assigned_to_a_module_counts(is_method, tmp_path):
    model, same, other = scaled(2.0), scaled(2.0), scaled(2.0)
    model.save_checkpoint(tmp_path / "model.fdl")
    assert same.load_checkpoint(tmp_path / "model.fdl").same_function
    linear = other.scale_1.linear
    linear.forward = types.MethodType(lambda self, x: x * 3, linear) if is_method else lambda x: x * 3
    assert not other.load_checkpoint(tmp_path / "model.fdl").same_function
    other.save_checkpoint(tmp_path / "model.fdl")
    assert other.load_checkpoint(tmp_path / "model.fdl").same_function
    del linear.forward
    assert not other.load_checkpoint(tmp_path / "model.fdl").same_function
