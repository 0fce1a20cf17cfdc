"""Gates with sparse dispatch, and the weights of a gate as a value."""

import pytest
import torch
from torch import Tensor, nn

from flodl import FlowBuilder, Graph, SigmoidRouter, SoftmaxRouter, TopKRouter, TrainStep
from flodl.core import BuildError, RefError, RouteError, StateError, TagError
from flodl.nn import load_balancing_loss


class Expert(nn.Module):
    """Counts the rows that it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 5)
        self.rows: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.rows.append(len(x))
        return self.linear(x).relu()


def moe(
    router: nn.Module, *, top_k: int | None = 2, masked: bool = False, weights: str | None = None
) -> Graph:
    torch.manual_seed(0)
    return (
        FlowBuilder()
        .gate(router, [Expert() for _ in range(3)], top_k=top_k, masked=masked, weights=weights)
        .tag("moe")
        .build()
    )


@pytest.mark.parametrize("shape", [(6, 4), (2, 5, 4)])
@pytest.mark.parametrize("kind", [SoftmaxRouter, SigmoidRouter])
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_sparse_dispatch_equals_running_every_expert(shape, kind, top_k):
    router, x = kind(4, 3), torch.randn(shape)
    sparse, masked = moe(router, top_k=top_k), moe(router, top_k=top_k, masked=True)
    torch.testing.assert_close(sparse(x), masked(x))
    grads = [torch.autograd.grad(m(x).square().sum(), [*m.parameters()]) for m in (sparse, masked)]
    torch.testing.assert_close(*grads)


def test_it_equals_the_dense_gate_with_a_top_k_router():
    router, x = TopKRouter(4, 3, k=2), torch.randn(6, 4)
    torch.testing.assert_close(moe(router, top_k=2)(x), moe(router, top_k=None)(x))


def test_each_expert_gets_only_its_rows():
    model = moe(SoftmaxRouter(4, 3), top_k=1)
    model(torch.randn(32, 4))
    experts = [model.moe.expert_0, model.moe.expert_1, model.moe.expert_2]
    assert sum(expert.rows[0] for expert in experts) == 32


def test_an_expert_without_rows_gets_zero_gradients():
    router = SoftmaxRouter(4, 3)
    with torch.no_grad():
        router.linear.weight.zero_()
        router.linear.bias.copy_(torch.tensor([5.0, 0.0, -5.0]))
    model = moe(router, top_k=1)
    model(torch.randn(6, 4)).sum().backward()
    assert model.moe.expert_2.linear.weight.grad.abs().max() == 0
    assert model.moe.expert_0.linear.weight.grad.abs().max() > 0


@pytest.mark.parametrize("masked", [False, True])
def test_a_router_of_one_expert_keeps_its_probability_and_learns(masked):
    router, x = SoftmaxRouter(4, 3), torch.randn(6, 4)
    model = moe(router, top_k=1, masked=masked)
    outputs = torch.stack([model.moe.parts()[f"expert_{i}"](x) for i in range(3)], dim=1)
    best, index = router(x).max(dim=-1)
    torch.testing.assert_close(model(x), outputs[range(6), index] * best[:, None])
    model(x).sum().backward()
    assert router.linear.weight.grad.abs().max() > 0


def test_a_top_k_router_of_one_expert_learns():
    router, x = TopKRouter(4, 3, k=1), torch.randn(6, 4)
    moe(router, top_k=None)(x).sum().backward()
    assert router.linear.weight.grad.abs().max() > 0
    assert torch.equal(router(x).sum(-1), router.linear(x).softmax(-1).max(-1).values)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weights", [None, "routing"])
@pytest.mark.parametrize(
    ("router", "found"),
    [
        (nn.Linear(4, 3), "the output of a linear layer"),
        (lambda x: torch.tensor([[1.0, -2.0, 0.5]]).expand(len(x), -1), "values from -2 to 1"),
    ],
)
def test_logits_instead_of_weights_are_an_error_in_the_first_call(router, found, weights, masked):
    model = moe(router, weights=weights, masked=masked)
    with pytest.raises(RouteError, match=f"returned {found}: these are logits"):
        model(torch.randn(6, 4))


def test_logits_are_noticed_behind_a_view_of_a_linear_layer():
    with pytest.raises(RouteError, match="the output of a linear layer"):
        moe(nn.Linear(4, 3))(torch.randn(2, 5, 4))


@pytest.mark.parametrize("act", [lambda x: x.relu() + 0.1, lambda x: x.exp(), lambda x: x.sigmoid()])
def test_weights_that_do_not_sum_to_one_are_accepted(act):
    moe(nn.Sequential(nn.Linear(4, 3), FlowBuilder(act).build()))(torch.randn(6, 4))


def test_samples_of_any_shape_are_routed_as_a_whole():
    router = SoftmaxRouter(3, 2, dim=1)
    model = FlowBuilder().gate(router, [nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 1)], top_k=1).build()
    assert model(torch.randn(5, 3, 4, 4)).shape == (5, 2, 4, 4)


def test_the_weights_are_a_tagged_value_that_trains_the_router():
    model = moe(SoftmaxRouter(4, 3), weights="routing")
    assert "routing.linear.weight" in model.state_dict()
    model(torch.randn(6, 4))
    weights = model.tagged("routing")
    assert weights.shape == (6, 3)
    load_balancing_loss(weights, top_k=2).backward()
    assert model.routing.linear.weight.grad.abs().max() > 0


def test_named_weights_do_not_change_the_result():
    router, x = SoftmaxRouter(4, 3), torch.randn(6, 4)
    for top_k in (None, 2):
        assert torch.equal(moe(router, top_k=top_k)(x), moe(router, top_k=top_k, weights="routing")(x))


def test_references_go_to_the_named_router():
    chain = FlowBuilder(nn.Linear(4, 4)).tag("hidden").through(nn.ReLU())
    model = chain.gate(SoftmaxRouter(4, 2), [nn.ReLU(), nn.GELU()], weights="routing").using("hidden").build()
    assert model(torch.randn(2, 4)).shape == (2, 4)
    assert dict(model.spec.nodes[model.spec.key_index["routing"]].refs).keys() == {"hidden"}


def test_training_with_a_balancing_loss_spreads_the_rows():
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    router = SoftmaxRouter(4, 3)
    with torch.no_grad():
        router.linear.bias.copy_(torch.tensor([3.0, 0.0, 0.0]))
    model = moe(router, top_k=1, weights="routing")

    def step_fn(model: nn.Module, x: Tensor) -> Tensor:
        model(x)
        return load_balancing_loss(model.tagged("routing"))

    step = TrainStep(model, torch.optim.Adam(model.parameters(), lr=0.1), step_fn)
    losses = [float(step(x)) for _ in range(60)]
    assert losses[0] > 2 > 1.2 > losses[-1]


def test_it_compiles_and_exports_without_masked():
    experts = [nn.Linear(4, 5) for _ in range(3)]
    model = FlowBuilder().gate(SoftmaxRouter(4, 3), experts, top_k=2).build().eval()
    x = torch.randn(6, 4)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (x,), dynamic_shapes={"input": {0: batch}})
    other = torch.randn(9, 4)
    torch.testing.assert_close(program.module()(other), model(other))
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(other), model(other))


def test_the_shape_check_runs_on_the_meta_device():
    FlowBuilder().gate(SoftmaxRouter(4, 2), [nn.Linear(4, 5), nn.Linear(4, 5)], top_k=1).build(
        example=torch.zeros(2, 4)
    )


def carrying() -> Graph:
    return FlowBuilder().through(lambda x, *, last: x).using("last").tag("last").build()


@pytest.mark.parametrize(
    ("experts", "options", "error", "words"),
    [
        ([nn.ReLU(), nn.GELU()], {"top_k": 3}, RouteError, "top_k=3 for 2 experts. Use top_k from 1 to 2"),
        ([nn.ReLU(), nn.GELU()], {"masked": True}, BuildError, "masked=True without top_k"),
        ([nn.ReLU(), nn.GELU()], {"weights": "code"}, TagError, "'code' is also"),
        ([nn.ReLU(), nn.GELU(), nn.SiLU()], {"weights": "w"}, RouteError, "2 weights for 3 experts"),
        ([carrying(), nn.GELU()], {"top_k": 1}, StateError, "expert_0.*carries 'last'.*masked=True"),
        ([nn.ReLU(), lambda x, *, y: x], {"top_k": 1}, RefError, "receives only the stream"),
    ],
)
def test_mistakes_at_build_time(experts, options, error, words):
    with pytest.raises(error, match=words):
        FlowBuilder().gate(SoftmaxRouter(4, 2), experts, **options)


@pytest.mark.parametrize(
    ("experts", "words"),
    [
        ([lambda x: x.sum(), nn.GELU()], r"expert_0.*returned shape \(\) for \d+ rows"),
        ([nn.Linear(4, 3), nn.Linear(4, 2)], r"expert_1.*rows of shape \(2,\).*first expert \(3,\)"),
    ],
)
def test_mistakes_in_experts(experts, words):
    with pytest.raises(RouteError, match=words):
        FlowBuilder().gate(SoftmaxRouter(4, 2), experts, top_k=1).build()(torch.randn(8, 4))


def test_weights_that_do_not_match_the_stream_are_an_error():
    model = FlowBuilder().gate(lambda x: torch.ones(3, 2), [nn.ReLU(), nn.GELU()], top_k=1).build()
    with pytest.raises(RouteError, match=r"weights of shape \(3, 2\) for a stream of shape \(8, 4\)"):
        model(torch.randn(8, 4))


@pytest.mark.parametrize("weights", [None, "routing"])
def test_a_router_that_chooses_fewer_experts_than_the_gate_is_an_error(weights):
    with pytest.raises(RouteError, match=r"top_k=2 with TopKRouter\(…, k=1\).*Use SoftmaxRouter"):
        moe(TopKRouter(4, 3, k=1), top_k=2, weights=weights)
