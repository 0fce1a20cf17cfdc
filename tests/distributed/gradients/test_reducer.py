"""Ranks that average their gradients train like one process, and like torch's DistributedDataParallel."""

from __future__ import annotations

import copy
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from flodl.core import DistributedError
from flodl.distributed.gradients import GradientReducer
from flodl.engine import TrainStep

PROGRAM = Path(__file__).with_name("rank_program.py")
RANK = runpy.run_path(str(PROGRAM))
Results = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[2, 3], ids=lambda num: f"{num} ranks")
def results(request, tmp_path_factory) -> Results:
    """The results of all scenarios, for each rank."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), str(request.param), str(folder)], env=environment
        )
        for rank in range(request.param)
    ]
    try:
        assert [process.wait(timeout=240) for process in ranks] == [0] * request.param
    finally:
        for process in ranks:
            process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(request.param)]


def of(results: Results, name: str) -> Results:
    """Return the results of one scenario; fail if it failed on a rank."""
    for rank, result in enumerate(results):
        for scenario, values in result.items():
            assert "failed" not in values, f"{scenario} failed on rank {rank}:\n{values['failed']}"
    return [result[name] for result in results]


def in_one_process(name: str, batches, *, step_fn=None, model=None, **settings) -> list[torch.Tensor]:
    """Return the parameters after training on these batches in this process."""
    model = RANK["new_model"]() if model is None else model
    step_fn = step_fn or RANK["mse"]
    step = TrainStep(model, RANK["OPTIMIZERS"][name](model.parameters()), step_fn, **settings)
    for batch in batches:
        step(*batch)
    step.flush()
    return [p.detach() for p in model.parameters()]


def joined(num_ranks: int, step: int, size_of) -> tuple[torch.Tensor, ...]:
    """Return the batches of all ranks as one."""
    parts = [RANK["batch_of"](rank, step, size_of(rank)) for rank in range(num_ranks)]
    return tuple(torch.cat(part) for part in zip(*parts))


def assert_close(ours: list[torch.Tensor], theirs: list[torch.Tensor], tolerance: float = 1e-6) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() <= tolerance


def assert_alike(ranks: Results) -> None:
    """Check that the replicas were bit-identical after every step."""
    assert all(rank["digests"] == ranks[0]["digests"] for rank in ranks)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_ranks_train_like_ddp_and_like_one_process(results, name):
    ranks = of(results, name)
    assert_alike(ranks)
    assert len(set(ranks[0]["digests"])) == RANK["STEPS"]
    assert_close(ranks[0]["parameters"], ranks[0]["ddp"])
    batches = [joined(len(ranks), number, lambda _: 8) for number in range(RANK["STEPS"])]
    assert_close(ranks[0]["parameters"], in_one_process(name, batches, clip_norm=0.1))
    assert all(rank["grad_norm"] == ranks[0]["grad_norm"] for rank in ranks)


@pytest.mark.slow
def test_ranks_with_different_batch_sizes_are_weighted_by_samples(results):
    ranks = of(results, "unequal_batches")
    assert_alike(ranks)
    batches = [joined(len(ranks), number, RANK["SIZES"].__getitem__) for number in range(RANK["STEPS"])]
    assert_close(ranks[0]["parameters"], in_one_process("sgd", batches, clip_norm=0.1))


@pytest.mark.slow
def test_an_accumulation_window_is_reduced_once_and_weighted_by_its_samples(results):
    ranks = of(results, "windows")
    assert_alike([{"digests": rank["digests"][2::3]} for rank in ranks])
    assert all(rank["num_calls"] == rank["updates"] == 10 for rank in ranks)
    sizes = RANK["SIZES"]
    micro_batches = [
        joined(len(ranks), number, lambda rank, number=number: sizes[(rank + number) % 3])
        for number in range(29)
    ]
    windows = [tuple(map(torch.cat, zip(*micro_batches[at : at + 3]))) for at in range(0, 29, 3)]
    assert_close(ranks[0]["parameters"], in_one_process("adamw", windows))


@pytest.mark.slow
def test_a_rank_with_an_empty_batch_contributes_nothing(results):
    ranks = of(results, "empty_batches")
    assert_alike(ranks)
    assert all(rank["num_skipped"] == 0 for rank in ranks)
    batches = [
        joined(len(ranks), number, lambda rank, number=number: 0 if rank == 0 and number % 3 == 2 else 8)
        for number in range(RANK["STEPS"])
    ]
    assert_close(ranks[0]["parameters"], in_one_process("sgd", batches))


@pytest.mark.slow
def test_a_rank_that_splits_a_batch_or_has_a_ragged_one_makes_the_same_updates(results):
    ranks = of(results, "ragged_and_out_of_memory")
    assert_alike(ranks)
    assert all(rank["num_calls"] == rank["updates"] == 12 for rank in ranks)
    batches = [
        joined(len(ranks), number, lambda rank, number=number: 3 if (rank, number) == (1, 7) else 8)
        for number in range(12)
    ]
    assert_close(ranks[0]["parameters"], in_one_process("sgd", batches))


@pytest.mark.slow
def test_a_branch_that_only_one_rank_takes_is_trained_on_all_and_one_that_none_takes_is_not(results):
    ranks = of(results, "branches")
    assert_alike(ranks)
    num_ranks = len(ranks)

    def step_fn(model, number):
        losses = []
        for rank in range(num_ranks):
            x, y = RANK["batch_of"](rank, number, 8)
            out = model(x, 5 <= number < 15 and number % num_ranks == rank)
            losses.append((out - y).square().mean())
        return torch.stack(losses).mean()

    torch.manual_seed(0)
    model = RANK["Branches"]()
    names = [name.partition(".")[0] for name, _ in model.named_parameters()]
    expected = in_one_process("adamw", [(number,) for number in range(20)], step_fn=step_fn, model=model)
    assert_close(ranks[0]["parameters"], expected)
    for rank in ranks:
        # AdamW would move a parameter that had a gradient of zero.
        assert rank["started"] == [name != "unused" for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["loss", "gradient", "input"])
def test_an_update_that_is_not_finite_on_one_rank_is_skipped_on_all(results, where):
    ranks = of(results, f"nan in {where}")
    assert_alike(ranks)
    for rank in ranks:
        assert (rank["num_skipped"], rank["updates"], rank["num_calls"]) == (2, 10, 10)
        assert rank["digests"][3] == rank["digests"][4] == rank["digests"][5] != rank["digests"][6]


@pytest.mark.slow
def test_a_rank_whose_data_ends_earlier_makes_the_updates_of_the_others(results):
    ranks = of(results, "earlier_end")
    assert_alike(ranks)
    assert [rank["updates"] for rank in ranks] == [10] * len(ranks)
    assert [rank["steps"] for rank in ranks] == [8] + [10] * (len(ranks) - 1)
    batches = [
        joined(len(ranks), number, lambda rank, number=number: 0 if rank == 0 and number >= 8 else 8)
        for number in range(10)
    ]
    assert_close(ranks[0]["parameters"], in_one_process("adamw", batches))


@pytest.mark.slow
def test_the_compiled_tier_is_compared_without_a_call_of_the_reducer(results):
    ranks = of(results, "compiled")
    assert_alike(ranks)
    for rank in ranks:
        assert rank["tier"] == "compiled", rank["reason"]
        assert rank["num_calls"] == rank["updates"] == 20
        assert_close(rank["parameters"], rank["eager"])


@pytest.mark.slow
def test_a_trial_that_fails_on_one_rank_leaves_the_ranks_alike(results):
    ranks = [rank["mixed"] for rank in of(results, "compiled")]
    assert_alike(ranks)
    assert [rank["tier"] for rank in ranks] == ["eager"] + ["compiled"] * (len(ranks) - 1)
    assert all(rank["num_calls"] == rank["updates"] == 20 for rank in ranks)


@pytest.mark.slow
def test_ranks_with_different_parameters_all_get_an_error(results):
    for rank in of(results, "different_layouts"):
        assert rank["error"].startswith("DistributedError: the gradients of the ranks differ in shape")
        assert rank["updates"] == 0


@pytest.mark.slow
def test_a_lost_rank_is_an_error_on_the_others_and_changes_no_gradient(results):
    ranks = of(results, "lost_rank")
    assert all(rank["is_unchanged"] for rank in ranks)
    for rank in ranks[:-1]:
        assert rank["error"].startswith("DistributedError: the gradients could not be averaged over the")


@pytest.fixture
def alone(tmp_path):
    """A process group of one rank."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    return dist.ProcessGroupGloo(store, 0, 1)


def test_a_group_of_one_rank_changes_no_bit(alone):
    batches = [RANK["batch_of"](0, number, 8) for number in range(10)]
    plain = in_one_process("adamw", batches, clip_norm=0.1)
    reduced = in_one_process("adamw", batches, clip_norm=0.1, reduce_gradients=GradientReducer(alone))
    for one, other in zip(plain, reduced):
        assert torch.equal(one, other)


def test_a_reducer_is_not_copied(alone):
    with pytest.raises(DistributedError, match="Create one in each rank"):
        copy.deepcopy(GradientReducer(alone))
