"""The load balancing loss."""

import pytest
import torch

from flodl.core import RouteError, ShapeError
from flodl.nn import load_balancing_loss


def test_it_is_one_for_evenly_spread_rows_and_the_number_of_experts_for_one_expert():
    even = torch.eye(4).repeat(3, 1)
    assert float(load_balancing_loss(even)) == 1
    assert float(load_balancing_loss(torch.eye(4)[:1].repeat(8, 1))) == 4


def test_it_equals_the_formula_for_every_step_of_a_sequence():
    weights = torch.randn(2, 5, 4).softmax(-1)
    rows = weights.reshape(-1, 4)
    counts = torch.zeros(4)
    for row in rows:
        counts[row.topk(2).indices] += 1
    want = 4 * (counts / 20 * rows.mean(0)).sum()
    torch.testing.assert_close(load_balancing_loss(weights, top_k=2), want)


def test_its_gradient_takes_weight_from_the_crowded_expert():
    logits = torch.tensor([[2.0, 0.0], [1.0, 0.0]], requires_grad=True)
    load_balancing_loss(logits.softmax(-1)).backward()
    assert logits.grad is not None
    assert bool((logits.grad[:, 0] > 0).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_it_keeps_the_dtype(dtype):
    assert load_balancing_loss(torch.rand(3, 2, dtype=dtype)).dtype == dtype


def test_mistakes_are_errors():
    with pytest.raises(ShapeError, match=r"shape \(3,\)"):
        load_balancing_loss(torch.rand(3))
    with pytest.raises(ValueError, match="top_k=3 for 2 experts"):
        load_balancing_loss(torch.rand(3, 2), top_k=3)


def test_logits_are_an_error():
    with pytest.raises(RouteError, match=r"got values from -2 to 1.*logits\.softmax\(dim=-1\)"):
        load_balancing_loss(torch.tensor([[1.0, -2.0]]))
    with pytest.raises(RouteError, match="got the output of a linear layer"):
        load_balancing_loss(torch.nn.Linear(4, 2)(torch.zeros(2, 3, 4)))


def test_it_compiles_and_works_under_vmap():
    weights = torch.rand(5, 3, 2).softmax(-1)
    compiled = torch.compile(load_balancing_loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(weights), load_balancing_loss(weights))
    assert torch.vmap(load_balancing_loss)(weights).shape == (5,)


def test_weights_that_are_not_a_tensor_are_an_error():
    with pytest.raises(ShapeError, match=r"the weights are a list\. Pass the output of a router"):
        load_balancing_loss([[0.5, 0.5]])
