"""All ways to place the scores of relative positions give the same attention and the same gradients."""

import pytest
import torch

from flodl.hf.heads import Head
from flodl.hf.parts.relative import DisentangledAttention
from flodl.hf.registry import family_of

from ..families.test_models import CONFIGS

TERMS = [["p2c", "c2p"], ["c2p"], ["p2c"]]


def run(placement, terms, *, length=13, mask=True):
    torch.manual_seed(0)
    raw = {"model_type": "deberta-v2", **CONFIGS["deberta-v2"], "pos_att_type": terms, "conv_kernel_size": 0}
    family = family_of(raw)
    graph = family.create(family.read_config(raw), Head.BASE).double().eval()
    for module in graph.modules():
        if isinstance(module, DisentangledAttention):
            module.placement = placement
    ids = torch.randint(5, 60, (3, length), generator=torch.Generator().manual_seed(1))
    real = (torch.arange(length) < torch.tensor([[length], [4], [6]])).long() if mask else None
    output = graph(ids, **dict.fromkeys(graph.spec.input_names) | {"attention_mask": real})
    if torch.is_grad_enabled():
        output.square().sum().backward()
    return output.detach(), {
        name: value.grad for name, value in graph.named_parameters() if value.grad is not None
    }


@pytest.mark.parametrize("terms", TERMS, ids=",".join)
@pytest.mark.parametrize("length", [13, 3])
def test_gathered_scores_equal_skewed_ones(terms, length):
    expected, gradients = run("skew", terms, length=length)
    found, others = run("gather", terms, length=length)
    torch.testing.assert_close(found, expected)
    assert others.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, msg=name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # it is not compiled
@torch.no_grad()  # FlexAttention has no backward on a CPU
@pytest.mark.parametrize("mask", [True, False])
def test_scores_inside_of_flex_attention_equal_skewed_ones(mask):
    torch.testing.assert_close(run("flex", TERMS[0], mask=mask)[0], run("skew", TERMS[0], mask=mask)[0])
