"""Every activation computes what transformers computes."""

import pytest
import torch

from flodl.hf.parts.activation import NAMES, Activation

from ..reference import error, transformers


@pytest.mark.parametrize("name", NAMES)
def test_an_activation_equals_that_of_transformers(name):
    value = torch.linspace(-12, 12, 999)
    if name == "sqrtsoftplus":
        value = value.abs()
    function = transformers.activations.ACT2FN[name]
    assert error(Activation(name)(value), function(value)) <= 1e-6


def test_all_activations_without_parameters_are_there():
    assert set(transformers.activations.ACT2FN) - set(NAMES) == {"prelu", "xielu"}
