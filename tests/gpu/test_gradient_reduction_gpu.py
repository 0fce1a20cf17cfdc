"""Gradients are averaged over ranks between two recorded programs, with the bits of the eager tier."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from flodl.distributed.gradients import GradientReducer
from flodl.engine import TrainStep
from flodl.engine.internals import controller_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


class HalvingReducer:
    """Stands in for other ranks: halves the gradients, and does what `extra` adds to a call."""

    def __init__(self, extra=None) -> None:
        self.num_calls = 0
        self.extra = extra

    def __call__(self, gradients, weight) -> None:
        self.num_calls += 1
        torch._foreach_mul_(list(gradients[:-1]), 0.5)
        if self.extra is not None:
            self.extra(self.num_calls, gradients)


def new_model() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(16, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 4))
    return nn.Sequential(*layers).cuda()


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def momentum(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


def train(tier, reducer, *, model=None, step_fn=mse, optimizer=adam, steps=40, sizes=(32,), **settings):
    model = new_model() if model is None else model
    step = TrainStep(
        model, optimizer(model.parameters()), step_fn, tier=tier, reduce_gradients=reducer, **settings
    )
    generator = torch.Generator("cuda").manual_seed(1)
    losses = []
    for number in range(steps):
        size = sizes[number % len(sizes)]
        x = torch.randn(size, 16, device="cuda", generator=generator)
        y = torch.randn(size, 4, device="cuda", generator=generator)
        losses.append(step(x, y))
    step.flush()
    return torch.stack(losses), [value.clone() for value in model.state_dict().values()], step


def assert_same_bits(one, other) -> None:
    assert torch.equal(one[0], other[0])
    for mine, theirs in zip(one[1], other[1], strict=True):
        assert torch.equal(mine, theirs)


def num_recorded_updates(step: TrainStep) -> int:
    """Return how many updates are recorded apart; fail if one was refused."""
    runner = controller_of(step).runner
    assert runner.update_program is not None
    assert runner.update_program.refusal is None, runner.update_program.refusal
    return sum(recorded.update is not None for recorded in runner.recorded.values())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimizer": momentum},
        {"clip_norm": 0.05},
        {"clip_norm": 0.05, "optimizer": momentum},
        {"clip_value": 0.01},
        {"accumulate": 3, "clip_norm": 0.05},
        {"precision": "bf16"},
        {"precision": "fp16", "clip_norm": 0.05},
        {"sizes": (32, 32, 32, 32, 32, 32, 32, 7)},
        {"strict": True},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_two_programs_equal_eager_bit_for_bit(settings: dict) -> None:
    eager = train("eager", HalvingReducer(), **settings)
    reducer = HalvingReducer()
    captured = train("captured", reducer, **settings)
    step = captured[2]
    assert step.tier == "captured", step.report()
    assert num_recorded_updates(step) == 1
    assert reducer.num_calls == step.updates
    assert_same_bits(eager, captured)


def test_the_gradients_of_the_reducer_are_applied() -> None:
    halved, whole = (train("captured", reducer, optimizer=momentum) for reducer in (HalvingReducer(), None))
    assert not torch.equal(halved[1][0], whole[1][0])


def test_a_flag_of_another_rank_skips_the_update_on_both_tiers() -> None:
    def flagged(number: int, gradients) -> None:
        if number in (3, 25, 26):
            gradients[-1][-1] = 0.5

    eager = train("eager", HalvingReducer(flagged))
    captured = train("captured", HalvingReducer(flagged))
    assert captured[2].tier == "captured", captured[2].report()
    assert num_recorded_updates(captured[2]) == 1
    assert int(eager[2].num_skipped) == int(captured[2].num_skipped) == 3
    assert_same_bits(eager, captured)


class Branches(nn.Module):
    """A model with a layer that this rank never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.other = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_a_parameter_that_only_another_rank_uses_is_updated_on_both_tiers() -> None:
    def used_elsewhere(number: int, gradients) -> None:
        if number in (2, 20, 30):
            gradients[2].fill_(0.5)
            gradients[-1][2] = 0.5

    results = []
    for tier in ("eager", "captured"):
        torch.manual_seed(0)
        model = Branches().cuda()
        results.append(train(tier, HalvingReducer(used_elsewhere), model=model, clip_norm=0.5))
        assert model.other.bias.grad is None
    assert results[1][2].tier == "captured", results[1][2].report()
    assert num_recorded_updates(results[1][2]) == 1
    assert_same_bits(*results)


def test_a_changed_setting_of_the_optimizer_is_noticed() -> None:
    weights = []
    for tier in ("eager", "captured"):
        model = new_model()
        optimizer = momentum(model.parameters())
        step = TrainStep(model, optimizer, mse, tier=tier, reduce_gradients=HalvingReducer())
        generator = torch.Generator("cuda").manual_seed(1)
        for number in range(40):
            if number == 20:
                optimizer.param_groups[0]["momentum"] = 0.5
            x = torch.randn(32, 16, device="cuda", generator=generator)
            step(x, x[:, :4].contiguous())
        weights.append(model[0].weight.detach().clone())
    assert step.tier == "captured", step.report()
    assert torch.equal(*weights)


def test_another_shape_has_its_own_programs() -> None:
    # One smaller batch would be a ragged one; the second in a row has the usual size.
    sizes = (32, 32, 24, 24)
    eager = train("eager", HalvingReducer(), sizes=sizes, steps=80)
    captured = train("captured", HalvingReducer(), sizes=sizes, steps=80)
    assert captured[2].tier == "captured", captured[2].report()
    assert num_recorded_updates(captured[2]) == captured[2].report().captures == 2
    assert_same_bits(eager, captured)


def test_the_compiled_tier_is_tried_without_the_reducer() -> None:
    torch.manual_seed(0)
    reducer, model = HalvingReducer(), nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).cuda()
    _, state, step = train("compiled", reducer, model=model, clip_norm=0.05)
    assert step.tier == "compiled", step.report()
    assert num_recorded_updates(step) == 1
    assert reducer.num_calls == step.updates == 40
    assert all(torch.isfinite(value).all() for value in state)


@pytest.fixture
def nccl(tmp_path):
    """A process group of one rank with NCCL."""
    if not dist.is_nccl_available():
        pytest.skip("torch was built without NCCL")
    dist.init_process_group(
        "nccl",
        init_method=f"file://{tmp_path}/store",
        rank=0,
        world_size=1,
        device_id=torch.device("cuda", torch.cuda.current_device()),
    )
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_group_of_one_rank_changes_no_bit(nccl) -> None:
    plain = train("captured", None)
    reduced = train("captured", GradientReducer(nccl))
    assert reduced[2].tier == "captured", reduced[2].report()
    assert_same_bits(plain, reduced)


class ClaimsTwoRanks:
    """A group of one rank that claims to have two, so that the vector is sent through NCCL."""

    def __init__(self, group) -> None:
        self._group = group

    def size(self) -> int:
        return 2

    def name(self) -> str:
        return "nccl"

    def allreduce(self, tensors, options):
        return self._group.allreduce(tensors, options)


def test_gradients_go_through_nccl_between_the_programs(nccl) -> None:
    plain = train("eager", None)
    # Of one rank, [w·g | w] divided by w is g; 32 samples make that exact.
    reduced = train("captured", GradientReducer(ClaimsTwoRanks(nccl)))
    assert reduced[2].tier == "captured", reduced[2].report()
    assert num_recorded_updates(reduced[2]) == 1
    assert_same_bits(plain, reduced)


def test_two_processes_share_a_device_through_the_host(tmp_path) -> None:
    program = Path(__file__).with_name("reduction_rank.py")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([sys.executable, str(program), str(rank), "2", str(tmp_path)], env=environment)
        for rank in range(2)
    ]
    try:
        assert [process.wait(timeout=240) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for tier in ("eager", "captured"):
        assert torch.equal(first[tier]["weights"], second[tier]["weights"])
        for rank in (first[tier], second[tier]):
            assert rank["tier"] == tier, rank["report"]
            assert rank["num_calls"] == rank["updates"] == 40
            assert rank["num_skipped"] == 1
    assert torch.equal(first["eager"]["weights"], first["captured"]["weights"])
