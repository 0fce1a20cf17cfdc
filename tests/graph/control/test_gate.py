"""Gates: every expert runs, and the router weights the outputs."""

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, SigmoidRouter, SoftmaxRouter, TopKRouter
from flodl.core import RouteError

from ..nodes import Broken, Double, Equal, Triple

ROWS = torch.arange(6.0).reshape(3, 2)


@pytest.mark.parametrize("router", [SoftmaxRouter, SigmoidRouter, TopKRouter])
def test_a_gate_is_the_weighted_sum_of_its_experts(router):
    torch.manual_seed(0)
    router, experts = router(2, 3), [nn.Linear(2, 4) for _ in range(3)]
    weights = router(ROWS)
    expected = sum(weights[:, position, None] * expert(ROWS) for position, expert in enumerate(experts))
    torch.testing.assert_close(FlowBuilder().gate(router, experts).build()(ROWS), expected)


def test_the_router_and_every_expert_receive_gradients():
    torch.manual_seed(0)
    model = FlowBuilder().gate(SoftmaxRouter(2, 2), [nn.Linear(2, 2), nn.Linear(2, 2)]).build()
    model(ROWS).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_router_weights_are_normalized_as_documented():
    torch.manual_seed(0)
    softmax, sigmoid, top = SoftmaxRouter(2, 3), SigmoidRouter(2, 3), TopKRouter(2, 3, k=2)
    torch.testing.assert_close(softmax(ROWS).sum(-1), torch.ones(3))
    assert ((sigmoid(ROWS) > 0) & (sigmoid(ROWS) < 1)).all()
    torch.testing.assert_close(top(ROWS).sum(-1), torch.ones(3))
    assert (top(ROWS) == 0).sum(-1).tolist() == [1, 1, 1]


def test_references_are_added_to_what_the_router_sees():
    torch.manual_seed(0)
    router = SoftmaxRouter(2, 2)
    flow = FlowBuilder().input("ctx").tag("x").gate(router, [Double(), Triple()]).using("ctx", "x")
    context = torch.randn(3, 2)
    weights = router(2 * ROWS + context)
    expected = weights[:, :1] * 2 * ROWS + weights[:, 1:] * 3 * ROWS
    torch.testing.assert_close(flow.build()(ROWS, ctx=context), expected)


def test_weights_broadcast_over_outputs_of_any_shape():
    images = torch.randn(3, 2, 5, 5)
    whole = FlowBuilder().gate(SoftmaxRouter(2, 2, dim=1), [Double(), Triple()]).build()
    assert whole(images).shape == images.shape
    steps = torch.randn(3, 4, 2)
    model = FlowBuilder().gate(SoftmaxRouter(2, 2), [Double(), Triple()]).build()
    weights = model.gate_1.router(steps)
    torch.testing.assert_close(model(steps), weights[..., :1] * 2 * steps + weights[..., 1:] * 3 * steps)


@pytest.mark.parametrize("weights", [torch.tensor([0.25, 0.75]), torch.tensor([[0.25, 0.75]])])
def test_one_row_of_weights_is_not_repeated_for_the_batch(weights):
    model = FlowBuilder().gate(lambda x: weights, [Double(), Triple()]).build()
    with pytest.raises(RouteError, match=r"at 'gate_1.router': .* all samples would share them") as caught:
        model(ROWS)
    assert f"Return one row per sample, ({len(ROWS)}, 2)." in str(caught.value)
    assert torch.equal(model(ROWS[:1]), 2.75 * ROWS[:1])
    expanded = FlowBuilder().gate(lambda x: weights.expand(len(x), -1), [Double(), Triple()]).build()
    assert torch.equal(expanded(ROWS), 2.75 * ROWS)


def test_a_sample_without_a_batch_dimension_may_have_weights_without_one():
    model = FlowBuilder().gate(lambda x: torch.tensor([0.25, 0.75]), [Double(), Triple()]).build()
    assert torch.equal(model(ROWS[0]), 2.75 * ROWS[0])


def test_weights_may_be_shared_by_the_time_steps_of_a_sample():
    steps = torch.ones(2, 5, 3)
    model = FlowBuilder().gate(lambda x: torch.full((len(x), 1, 2), 0.5), [Double(), Triple()]).build()
    assert torch.equal(model(steps), 2.5 * steps)


def test_an_empty_batch_passes():
    assert FlowBuilder().gate(Equal(), [Double(), Triple()]).build()(torch.zeros(0, 2)).shape == (0, 2)


@pytest.mark.parametrize(
    ("router", "experts", "message"),
    [
        (
            lambda x: torch.ones(3, 3),
            [Double(), Triple()],
            "at 'moe': the router gives 3 weights for 2 experts. Give the router 2 outputs or add an expert.",
        ),
        (
            lambda x: torch.ones(3, 1),
            [Double(), Triple()],
            "at 'moe': the router gives 1 weights for 2 experts. "
            "Give the router 2 outputs or remove an expert.",
        ),
        (
            lambda x: 0.5,
            [Double(), Triple()],
            "at 'moe': the router returned a float. Return a tensor with one weight per expert, last.",
        ),
        (
            lambda x: torch.tensor(0.5),
            [Double(), Triple()],
            "at 'moe': the router returned a scalar. Return a tensor with one weight per expert, last.",
        ),
        (
            Equal(),
            [Double(), nn.Linear(2, 5)],
            "at 'moe.expert_1': the expert returned shape (3, 5), the first expert (3, 2). "
            "All experts of a gate must return the same shape.",
        ),
        (
            Equal(),
            [Double(), lambda x: (x, x)],
            "at 'moe.expert_1': the expert returned a tuple. The experts of a gate must return tensors.",
        ),
        (
            lambda x: torch.ones(4, 2),
            [Double(), Triple()],
            "at 'moe': the router returned weights of shape (4, 2) for experts of shape (3, 2). Every "
            "dimension before the last must match the experts' shape: one weight per expert for each sample, "
            "or for each step.",
        ),
    ],
)
def test_a_router_that_does_not_match_the_experts_is_rejected(router, experts, message):
    with pytest.raises(RouteError) as caught:
        FlowBuilder().gate(router, experts).tag("moe").build()(ROWS)
    assert str(caught.value) == message


def test_errors_inside_name_the_part():
    with pytest.raises(ValueError, match="broken") as caught:
        FlowBuilder().gate(Equal(), [Double(), Broken()]).build()(ROWS)
    assert caught.value.__notes__ == [f"flodl: at 'gate_1.expert_1', Broken(), given {tuple(ROWS.shape)}"]
    with pytest.raises(ValueError, match="broken") as caught:
        FlowBuilder().gate(Broken(), [Double(), Double()]).build()(ROWS)
    assert caught.value.__notes__ == [f"flodl: at 'gate_1.router', Broken(), given {tuple(ROWS.shape)}"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: SoftmaxRouter(2, 1), "SoftmaxRouter got 1 choices. Pass at least 2."),
        (lambda: TopKRouter(2, 3, k=4), "TopKRouter got k=4 for 3 choices. Use k from 1 to 3."),
        (lambda: TopKRouter(2, 3, k=0), "TopKRouter got k=0"),
    ],
)
def test_routers_check_their_arguments(wrong, words):
    with pytest.raises(RouteError) as caught:
        wrong()
    assert words in str(caught.value)
