"""Linear layers with the same input, computed in one matmul."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, scaled_dot_product_attention

from flodl.engine.compile.passes.matmuls.projections import MergeProjections

from ..rewritten_programs import compiled_like_eager, counted

pytestmark = [
    pytest.mark.usefixtures("passes_on_cpu"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # torch's compiler
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),
]
BF16 = torch.bfloat16
X = torch.randn((2, 5, 16), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()


class Attention(nn.Module):
    """Two heads, as in models of transformers; keys and values are narrower."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.query = nn.Linear(16, 16, bias=bias)
        self.key, self.value = nn.Linear(16, 8, bias=bias), nn.Linear(16, 8, bias=bias)
        self.output = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        parts = [layer(x).view(2, 5, -1, 8).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        heads = scaled_dot_product_attention(*parts, enable_gqa=True)
        return self.output(heads.transpose(1, 2).reshape(2, 5, 16))


def num_linears(
    layer: nn.Module,
    function: Callable[[Tensor], Tensor] | None = None,
    *,
    autocast: bool = True,
    code: bool = False,
) -> int:
    """Compile a layer, compare it with eager mode in both directions; return how many linears are left."""
    change, counts = counted(MergeProjections, linear)
    torch.manual_seed(0)
    compiled_like_eager(layer, X, change, function=function, autocast=autocast, code=code)
    (left,) = counts
    return left


@pytest.mark.parametrize("bias", [True, False])
def test_queries_keys_and_values_are_computed_together(bias: bool) -> None:
    assert num_linears(Attention(bias=bias), code=bias) == 2


def test_float32_layers_stay_separate() -> None:
    assert num_linears(Attention(), autocast=False) == 4


def test_frozen_layers_stay_separate_from_trained_ones() -> None:
    model = Attention()
    model.query.requires_grad_(False)
    assert num_linears(model) == 3


def test_layers_of_different_kinds_stay_separate() -> None:
    model = Attention()
    model.query = nn.Linear(16, 16, bias=False)
    assert num_linears(model) == 3


def test_a_weight_that_is_used_twice_stays_separate() -> None:
    model = Attention()
    model.value = model.key
    assert num_linears(model) == 3


@pytest.mark.parametrize("width", [12, 2048])
def test_layers_whose_width_is_odd_or_large_stay_separate(width: int) -> None:
    layers = nn.ModuleList([nn.Linear(16, width), nn.Linear(16, width)])

    assert num_linears(layers, lambda x: layers[0](x) * layers[1](x)) == 2


def test_layers_stay_separate_if_the_input_changes_between_them() -> None:
    layers = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])

    def function(x: Tensor) -> Tensor:
        x = x * 2
        first = layers[0](x)
        x.add_(1.0)
        return first + layers[1](x)

    assert num_linears(layers, function) == 2


def test_layers_in_regions_of_different_precision_stay_separate() -> None:
    layers = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])

    def function(x: Tensor) -> Tensor:
        first = layers[0](x)
        with torch.autocast("cpu", enabled=False):
            return first + layers[1](x)

    assert num_linears(layers, function) == 2


def test_layers_stay_separate_if_a_view_needs_contiguous_memory() -> None:
    layers = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])

    assert num_linears(layers, lambda x: layers[0](x).view(2, 80) * layers[1](x).view(2, 80)) == 2
    torch._dynamo.reset()
    assert num_linears(layers, lambda x: layers[0](x).reshape(2, 80) * layers[1](x).flatten(1)) == 1


def test_layers_of_other_blocks_are_merged_with_those_next_to_them() -> None:
    layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])

    def function(x: Tensor) -> Tensor:
        first = layers[0](x) * layers[1](x)
        first = dropout(first, 0.0, True)
        return first + layers[2](x) * layers[3](x)

    assert num_linears(layers, function) == 2
