"""Adam in a few launches: the bits of torch's kernel in the forms that are taken, torch's own in others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flodl.engine import TrainStep
from flodl.engine.device.tensors import same_bits
from flodl.engine.optimizer import adam
from flodl.optim import clip_grad_norm
from flodl.optim.clipping import norm_and_scale

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's compiler
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def algorithms_that_repeat_themselves():
    """With others, two eager runs of a convolution differ already."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before


@pytest.mark.parametrize("size", [512, 1024, 2048, 4096])
def test_the_kernels_have_the_bits_of_torchs(size: int) -> None:
    assert adam.matches_torch(torch.device("cuda", 0), size)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 130), nn.GELU(), nn.LayerNorm(130), nn.Linear(130, 3)).cuda()


def batch(number: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    source = torch.Generator("cuda").manual_seed(number)
    x = torch.randn(8, 7, device="cuda", generator=source)
    return x * scale, torch.randn(8, 3, device="cuda", generator=source)


def mse(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), y)


def groups(model: nn.Module) -> list[dict[str, object]]:
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    return [
        {"params": weights, "lr": 3e-3},
        {"params": others, "weight_decay": 0.0, "betas": (0.8, 0.99), "eps": 1e-6},
    ]


FORMS = {
    "Adam": (torch.optim.Adam, {}, True),
    "AdamW": (torch.optim.AdamW, {"weight_decay": 0.1}, True),
    "Adam with decay": (torch.optim.Adam, {"weight_decay": 0.1}, False),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True}, False),
    "maximize": (torch.optim.Adam, {"maximize": True}, False),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_recorded_update_follows_torchs_bit_for_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, settings, is_quick = FORMS[name]
    recorded: list[bool] = []
    run = adam.FastAdam.run

    def watched(self: adam.FastAdam, scale: Tensor | None = None) -> None:
        recorded.append(torch.cuda.is_current_stream_capturing())
        run(self, scale)

    monkeypatch.setattr(adam.FastAdam, "run", watched)
    states = []
    for tier in ("eager", "captured"):
        net = model()
        optimizer = kind(groups(net), lr=1e-3, **settings)
        step = TrainStep(net, optimizer, mse, tier=tier, clip_norm=1.0)
        for number in range(120):
            # A rate that changes, and an update that is skipped.
            optimizer.param_groups[0]["lr"] = 3e-3 / (1 + number)
            step(*batch(number, float("inf") if number in (40, 41, 90) else 1.0))
        assert step.tier == tier, step.report()
        assert int(step.num_skipped) == 3
        kept = [value for p in net.parameters() for value in optimizer.state[p].values()]
        states.append([*net.state_dict().values(), *kept])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    assert any(recorded) is is_quick


@pytest.mark.parametrize("poison", [None, torch.nan, torch.inf, 1e30], ids=str)
@pytest.mark.parametrize("limit", [1e-3, 1e9], ids=["above the limit", "below the limit"])
def test_clipping_inside_the_update_leaves_the_bits_of_clipping_before_it(limit: float, poison) -> None:
    """The norm of gradients with 1e30 is infinite, although they are finite."""
    results = []
    for way in ("torch", "before", "inside"):
        source = torch.Generator("cuda").manual_seed(0)
        sizes = (9000, 512, 130, 1)
        parameters = [nn.Parameter(torch.randn(n, device="cuda", generator=source)) for n in sizes]
        rate = torch.tensor(1e-3, device="cuda")
        optimizer = torch.optim.AdamW(parameters, lr=rate, fused=True, capturable=True)
        bad, skipped = torch.zeros((), device="cuda"), torch.zeros((), device="cuda", dtype=torch.float64)
        kept: list[Tensor] = []
        for number in range(4):
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape, device="cuda", generator=source)
            if number == 2 and poison is not None:
                parameters[2].grad[7] = poison
            scale = None
            if way == "inside" and number > 0:
                norm, scale = norm_and_scale(parameters, limit)
            else:
                norm = clip_grad_norm(parameters, limit)
            bad.copy_(norm - norm != 0)
            if way == "torch" or number == 0:
                optimizer.found_inf, optimizer.grad_scale = bad, None
                optimizer.step()
                skipped += bad
            else:
                fast = adam.FastAdam(optimizer, bad, skipped, checks_gradients=False)
                assert fast.gather()
                fast.write_tables()
                fast.run(scale)
            kept += [norm, *(parameter.grad for parameter in parameters)]
        states = [value for p in parameters for value in optimizer.state[p].values()]
        results.append([*kept, *parameters, *states, skipped])
        assert int(skipped) == (poison is not None)
    for other in results[1:]:
        assert all(same_bits(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize(
    "settings",
    [
        {"clip_norm": 1e-2},
        {"clip_norm": 1e9},
        {"clip_norm": 0.1, "clip_value": 0.01},
        {"clip_norm": 0.1, "accumulate": 2},
        {"clip_norm": 0.1, "precision": "fp16"},
        {"clip_norm": 0.1, "guard": "loss"},
    ],
    ids=str,
)
def test_a_recorded_step_clips_as_eager_does(settings) -> None:
    states = []
    for tier in ("eager", "captured"):
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        step = TrainStep(net, optimizer, mse, tier=tier, **settings)
        norms = []
        for number in range(80):
            scale = {50: float("inf"), 60: float("nan")}.get(number, 1.0)
            step(*batch(number, scale))
            norms.append(step.grad_norm)
        assert step.tier == tier, step.report()
        kept = [value for p in net.parameters() for value in optimizer.state[p].values()]
        states.append([*norms, *net.state_dict().values(), *kept, torch.tensor(int(step.num_skipped))])
    assert int(states[0][-1]) >= 2
    assert all(same_bits(a, b) for a, b in zip(*states, strict=True))


def root(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """At zero, this loss is finite and its gradient is not."""
    return (model[3](x) * y).abs().sqrt().sum()


@pytest.mark.parametrize("tier", ["captured", "compiled"])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
@pytest.mark.parametrize("settings", [{}, {"clip_value": 0.1}, {"accumulate": 2}], ids=str)
def test_a_gradient_that_is_not_finite_skips_the_update_like_eager(tier: str, kind, settings) -> None:
    states = []
    for way in ("eager", tier):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Identity(), nn.Identity(), nn.Identity(), nn.Linear(3, 700)).cuda()
        optimizer = kind(net.parameters(), lr=1e-3)
        step = TrainStep(net, optimizer, root, tier=way, **settings)
        for number in range(40):
            x = torch.randn(8, 3, device="cuda", generator=torch.Generator("cuda").manual_seed(number))
            y = torch.ones(8, 700, device="cuda")
            y[:, 699] = float(number not in (30, 33))
            assert step(x, y).isfinite()
        assert step.tier == way, step.report()
        assert int(step.num_skipped) == 2
        states.append(net.state_dict().values())
    for one, other in zip(*states, strict=True):
        assert one.isfinite().all()
        assert other.isfinite().all()
        # Near zero, the slope of a root multiplies the rounding of a compiled step.
        assert tier == "compiled" or torch.equal(one, other)


def test_parameters_that_are_frozen_and_thawed_are_updated_as_eager_updates_them() -> None:
    states = []
    for tier in ("eager", "captured"):
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        step = TrainStep(net, optimizer, mse, tier=tier)
        for number in range(60):
            net[0].requires_grad_(not 20 <= number < 40)
            step(*batch(number))
        assert step.tier == tier, step.report()
        states.append([*net.state_dict().values(), *(optimizer.state[p]["step"] for p in net.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


def test_weights_of_any_dense_layout_are_updated_as_eager_updates_them() -> None:
    states = []
    for tier in ("eager", "captured"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 5)).cuda()
        net = net.to(memory_format=torch.channels_last)
        step = TrainStep(
            net, torch.optim.Adam(net.parameters()), lambda net, x: net(x).square().mean(), tier=tier
        )
        source = torch.Generator("cuda").manual_seed(0)
        for _ in range(30):
            step(torch.randn(4, 3, 8, 8, device="cuda", generator=source))
        assert step.tier == tier, step.report()
        states.append(list(net.state_dict().values()))
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


def test_gradients_that_are_parts_of_one_tensor_are_taken() -> None:
    """Gradients that a compiled step hands out may be parts of one tensor."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).cuda()
    step = TrainStep(
        net,
        torch.optim.Adam(net.parameters()),
        lambda net, x: net(x).square().mean(),
        tier="compiled",
    )
    x = torch.randn(16, 64, device="cuda")
    losses = [float(step(x)) for _ in range(40)]
    assert step.tier == "compiled", step.report()
    assert losses[-1] < losses[0]
