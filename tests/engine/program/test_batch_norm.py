"""Running statistics are restored after a batch that does not count."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from flodl.engine import TrainStep
from flodl.engine.internals import body_of
from flodl.engine.program.batch_norm import RunningStatistics


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def new_model(*, lazy: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.LazyBatchNorm1d() if lazy else nn.BatchNorm1d(8)
    return nn.Sequential(nn.Linear(4, 8), norm, nn.GELU(), nn.Linear(8, 2))


def new_step(model: nn.Module, step_fn=mse, **settings) -> TrainStep:
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, **settings)


def statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def assert_a_nan_batch_leaves_no_trace(step: TrainStep, model: nn.Module, dtype=torch.float32) -> None:
    x, y = torch.randn(6, 4, dtype=dtype), torch.randn(6, 2, dtype=dtype)
    step(x, y)
    before = statistics(model)
    step(torch.full_like(x, torch.nan), y)
    torch.testing.assert_close(statistics(model), before, rtol=0, atol=0)
    step(x, y)
    assert all(torch.isfinite(buffer).all() for buffer in model.buffers())
    assert model[1].num_batches_tracked == before["1.num_batches_tracked"] + 1


def test_a_skipped_batch_leaves_the_statistics_and_their_count_alone() -> None:
    model = new_model()
    assert_a_nan_batch_leaves_no_trace(new_step(model), model)


def test_statistics_that_changed_their_dtype_are_found() -> None:
    model = new_model()
    step = new_step(model)
    step(torch.randn(6, 4), torch.randn(6, 2))
    model.double()
    assert_a_nan_batch_leaves_no_trace(step, model, torch.float64)


def test_statistics_that_were_replaced_are_found() -> None:
    model = new_model()
    step = new_step(model)
    step(torch.randn(6, 4), torch.randn(6, 2))
    norm = model[1]
    for name, buffer in [*norm.named_buffers()]:
        setattr(norm, name, buffer.clone())
    assert_a_nan_batch_leaves_no_trace(step, model)


def test_a_lazy_norm_is_saved_once_it_has_statistics() -> None:
    model = new_model(lazy=True)
    assert_a_nan_batch_leaves_no_trace(new_step(model), model)


@pytest.mark.parametrize("num", [1, 5])
def test_a_flag_on_a_device_selects_without_being_read(num: int, monkeypatch) -> None:
    """What runs on a device, run on the CPU; one norm and many norms take different branches."""
    norms = [nn.BatchNorm1d(size) for size in range(2, 2 + num)]
    kept = RunningStatistics(norms)
    for flag in (False, True):
        kept.save()
        before = [buffer.clone() for norm in norms for buffer in norm.buffers()]
        for norm in norms:
            norm(torch.full((3, norm.num_features), torch.nan if flag else 2.0))
        moved = [buffer.clone() for norm in norms for buffer in norm.buffers()]
        kept.restore_on_device(torch.tensor(flag))
        now = [buffer for norm in norms for buffer in norm.buffers()]
        assert all(torch.equal(a, b) for a, b in zip(now, before if flag else moved))


@pytest.mark.parametrize(("accumulate", "at"), [(1, 0), (1, 1), (2, 0), (2, 1), (3, 1)])
def test_a_forward_that_ran_out_of_memory_leaves_no_trace(accumulate: int, at: int) -> None:
    def train(*, fails: bool) -> dict[str, torch.Tensor]:
        model = new_model()
        calls: list[int] = []

        def step_fn(model, x, y):
            out = model(x)
            calls.append(len(x))
            if fails and len(calls) == at + 1:
                raise torch.OutOfMemoryError("after the norm has seen the batch")
            return nn.functional.mse_loss(out, y)

        step = new_step(model, step_fn, accumulate=accumulate)
        source = torch.Generator().manual_seed(1)
        for number in range(3):
            if not fails and number == at:
                body_of(step).pieces = 2
            step(torch.randn(6, 4, generator=source), torch.zeros(6, 2))
        assert calls[at] == (6 if fails else 3)
        return statistics(model)

    torch.testing.assert_close(train(fails=True), train(fails=False), rtol=0, atol=0)


def test_an_unpickled_copy_saves_and_restores_its_own_norms():
    norms = [nn.BatchNorm1d(2) for _ in range(4)]
    original = RunningStatistics(norms)
    original.save()
    copied_norms, copied = pickle.loads(pickle.dumps((norms, original)))
    for norm in copied_norms:
        norm.running_mean.fill_(5.0)
    copied.save()
    for norm in copied_norms:
        norm.running_mean.fill_(torch.nan)
    copied.restore_on_device(torch.tensor(True))
    assert all(torch.equal(norm.running_mean, torch.full((2,), 5.0)) for norm in copied_norms)
    assert all(torch.equal(norm.running_mean, torch.zeros(2)) for norm in norms)
