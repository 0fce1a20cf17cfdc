"""What happens inside one window when memory runs out, something fails, or gradients are clipped."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from flodl.core import ScheduleError, StepError
from flodl.engine import NoGradient, TrainStep
from flodl.engine.internals import body_of
from flodl.engine.mistakes.skipped_updates import SkippedUpdates
from flodl.engine.optimizer.adam import FastAdam
from flodl.engine.program.running_means import account


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def new_step(step_fn=mse, **settings) -> TrainStep:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).double()
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, **settings)


def batches(count: int, size: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 4, generator=source).double(), torch.randn(size, 2, generator=source).double())
        for _ in range(count)
    ]


def weights(step: TrainStep) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in body_of(step).model.parameters()]


def assert_close(one: TrainStep, other: TrainStep) -> None:
    for ours, theirs in zip(weights(one), weights(other)):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


class Failing(torch.autograd.Function):
    """Works in the forward pass and fails in the backward pass."""

    @staticmethod
    def forward(ctx, x, error):
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ctx.error


class NoReads(TorchDispatchMode):
    """Raises if the host reads a number."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert "_local_scalar_dense" not in str(func), "the host waits for the device here"
        return func(*args, **(kwargs or {}))


@contextmanager
def nothing_read() -> Iterator[None]:
    """Raise if the host reads a number, except for skipped updates: on a device, a copy is read."""
    with patch.object(SkippedUpdates, "check", lambda *_, **__: None), NoReads():
        yield


def as_on_a_device(step: TrainStep, *, gates: bool = False) -> None:
    """Let a step on the CPU run as on a device; with `gates`, the optimizer's kernel reads the flag."""
    body = body_of(step)
    body.updater.host_reads_flag, body.updater.reads_flag = False, gates
    body.means.account = account


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("tail", ["eager", "pad"])
def test_an_accumulation_window_does_not_wait_for_the_device(tail, pieces: int) -> None:
    sizes: list[int] = []

    def step_fn(model, x, y, *, mask=None):
        sizes.append(len(x))
        values = {"mean": x.mean(), "rows": x, "number": 3, **({"first": y[0]} if len(x) == 2 else {})}
        return mse(model, x, y), values

    step = new_step(step_fn, tail=tail, accumulate=2, clip_norm=1.0)
    as_on_a_device(step)
    body_of(step).pieces = pieces
    x, y = batches(1)[0]
    for _ in range(2):
        step(x, y)
    sizes.clear()
    with nothing_read():
        step(x, y)
        step(x[:3], y[:3])
    assert sum(sizes) == (12 if tail == "pad" else 9)
    assert (step.updates, int(step.num_skipped)) == (2, 0)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_out_of_memory_in_any_forward_of_a_window_keeps_the_update(at: int) -> None:
    calls: list[int] = []

    def hungry(model, x, y):
        calls.append(len(x))
        if len(calls) == at + 1:
            raise torch.OutOfMemoryError("a small device")
        return mse(model, x, y)

    cut, whole = new_step(hungry, accumulate=3), new_step(accumulate=3)
    for batch in batches(6):
        torch.testing.assert_close(cut(*batch), whole(*batch), rtol=1e-12, atol=0)
    assert calls[at : at + 3] == [6, 3, 3]
    assert_close(cut, whole)
    assert cut.means()["loss"] == pytest.approx(float(whole.means()["loss"]), rel=1e-12)


def test_out_of_memory_in_the_backward_of_a_first_micro_batch_splits_it() -> None:
    def hungry(model, x, y):
        loss = mse(model, x, y)
        return Failing.apply(loss, torch.OutOfMemoryError("a small device")) if len(x) > 3 else loss

    cut, whole = new_step(hungry), new_step()
    for batch in batches(3):
        cut(*batch)
        whole(*batch)
    assert_close(cut, whole)


def test_out_of_memory_in_a_later_backward_drops_the_window_and_says_what_to_do() -> None:
    calls: list[int] = []

    def hungry(model, x, y):
        calls.append(1)
        loss = mse(model, x, y)
        return Failing.apply(loss, torch.OutOfMemoryError("a small device")) if len(calls) == 2 else loss

    step, clean = new_step(hungry, accumulate=2), new_step(accumulate=2)
    first, second, third, fourth = batches(4)
    step(*first)
    with pytest.raises(torch.OutOfMemoryError) as error:
        step(*second)
    assert "larger accumulate" in error.value.__notes__[0]
    assert step.is_between_updates
    for batch in (third, fourth):
        step(*batch)
        clean(*batch)
    assert_close(step, clean)


def test_out_of_memory_with_a_packed_batch_says_what_to_do() -> None:
    def starving(model, inputs, labels):
        raise torch.OutOfMemoryError("no room at all")

    packed = {"input_ids": torch.zeros(1, 47), "cu_seqlens": torch.tensor([0, 20, 47])}
    with pytest.raises(torch.OutOfMemoryError, match="no room at all") as error:
        new_step(starving)(packed, torch.zeros(2))
    assert "A packed batch, which has several texts in one row, cannot be split." in error.value.__notes__[0]
    assert "smaller batch_size and a larger accumulate" in error.value.__notes__[0]


def test_out_of_memory_with_one_sample_says_what_to_do() -> None:
    def starving(model, x, y):
        raise torch.OutOfMemoryError("no room at all")

    step = new_step(starving)
    with pytest.raises(torch.OutOfMemoryError, match="no room at all") as error:
        step(*batches(1)[0])
    assert "A single sample needs more memory than there is" in error.value.__notes__[0]
    assert body_of(step).pieces == 6


@pytest.mark.parametrize("tier", ["eager", "compiled"])
def test_an_error_in_a_backward_drops_its_window(tier: str, quick_compiler) -> None:
    broken = [False]

    def step_fn(model, x, y):
        return mse(model, x, y)

    def break_it(grad):
        if broken[0]:
            raise ValueError("a backward that fails")

    step, clean = new_step(step_fn, accumulate=2, tier=tier), new_step(accumulate=2, tier="eager")
    body_of(step).parameters[0].register_post_accumulate_grad_hook(break_it)
    data = batches(20)
    for batch in data[:15]:
        step(*batch)
    for batch in data[:14]:
        clean(*batch)
    assert step.tier == tier, step.report()
    broken[0] = True
    with pytest.raises(ValueError, match="a backward that fails"):
        step(*data[15])
    broken[0] = False
    assert step.is_between_updates
    assert all(parameter.grad is None for parameter in body_of(step).parameters)
    for batch in data[16:18]:
        step(*batch)
        clean(*batch)
    for ours, theirs in zip(weights(step), weights(clean)):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("flush", [False, True])
def test_an_error_in_the_optimizer_drops_its_window(flush: bool, monkeypatch) -> None:
    step, clean = new_step(accumulate=2), new_step(accumulate=2)
    data = batches(4)
    real = body_of(step).optimizer.step

    def fails() -> None:
        raise ValueError("an optimizer that fails")

    monkeypatch.setattr(body_of(step).optimizer, "step", fails)
    step(*data[0])
    with pytest.raises(ValueError, match="an optimizer that fails"):
        step.flush() if flush else step(*data[1])
    monkeypatch.setattr(body_of(step).optimizer, "step", real)
    assert step.is_between_updates
    assert step.updates == 0
    for batch in data[2:]:
        step(*batch)
        clean(*batch)
    assert_close(step, clean)


@pytest.mark.parametrize("settings", [{"clip_norm": 0.1}, {"clip_norm": 0.1, "clip_value": 0.05}], ids=str)
def test_the_gradient_norm_is_from_before_any_clipping_and_values_are_clipped_first(settings: dict) -> None:
    x, y = batches(1)[0]
    step, by_hand = new_step(**settings), body_of(new_step()).model
    assert torch.isnan(step.grad_norm)
    step(x, y)
    mse(by_hand, x, y).backward()
    norm = torch.stack([p.grad.norm() for p in by_hand.parameters()]).norm()
    torch.testing.assert_close(step.grad_norm.double(), norm, rtol=1e-6, atol=0)
    if "clip_value" in settings:
        nn.utils.clip_grad_value_(by_hand.parameters(), settings["clip_value"])
    nn.utils.clip_grad_norm_(by_hand.parameters(), settings["clip_norm"])
    torch.optim.SGD(by_hand.parameters(), lr=0.1).step()
    for ours, theirs in zip(weights(step), by_hand.parameters()):
        torch.testing.assert_close(ours, theirs.detach())


@pytest.mark.parametrize("settings", [{"clip_norm": 0.1}, {"clip_norm": 0.1, "clip_value": 0.05}], ids=str)
def test_an_update_that_scales_gradients_itself_receives_what_clipping_multiplies_by(settings: dict) -> None:
    def clipped(*, scales_itself: bool) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        body = body_of(new_step(**settings))
        mse(body.model, *batches(1)[0]).backward()
        quick = FastAdam(body.optimizer, body.bad, body.updater.num_skipped, checks_gradients=False)
        scale = body.updater.finish_gradients(1.0, quick if scales_itself else None)
        return scale, [body.updater.grad_norm, *(p.grad for p in body.parameters)]

    scale, (norm, *grads) = clipped(scales_itself=True)
    nothing, (same_norm, *multiplied) = clipped(scales_itself=False)
    assert nothing is None
    assert scale is not None
    assert scale < 1.0
    assert torch.equal(norm, same_norm)
    assert all(torch.equal(grad * scale, other) for grad, other in zip(grads, multiplied))


@pytest.mark.parametrize("settings", [{}, {"clip_value": 0.1}, {"guard": "gradients"}], ids=str)
def test_without_clip_norm_the_gradient_norm_is_nan(settings: dict) -> None:
    step = new_step(**settings)
    step(*batches(1)[0])
    assert math.isnan(step.grad_norm)


@pytest.mark.parametrize("settings", [{"guard": "gradients"}, {"clip_norm": 1.0}], ids=str)
def test_clipping_values_does_not_hide_a_gradient_that_is_not_finite(settings: dict) -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda m, x: m.weight.sqrt().sum(),  # finite at zero, and infinitely steep
        clip_value=0.1,
        **settings,
    )
    step(torch.ones(1, 1))
    assert bool(step.skipped)
    assert model.weight == 0


def test_an_empty_batch_that_opens_a_window_is_a_skipped_update() -> None:
    step = new_step(accumulate=2)
    before = weights(step)
    assert torch.isnan(step(torch.zeros(0, 4).double(), torch.zeros(0, 2).double()))
    step(*batches(1)[0])
    assert step.updates == 1
    assert bool(step.skipped)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(step)))
    step(torch.zeros(0, 4).double(), torch.zeros(0, 2).double())
    step.flush()
    assert step.num_skipped == 2


def test_an_empty_batch_with_a_finite_loss_has_no_weight() -> None:
    def total(model, x, y):
        return (model(x) - y).square().sum() / max(len(x), 1)

    step, alone = new_step(total, accumulate=2), new_step(total)
    step(torch.zeros(0, 4).double(), torch.zeros(0, 2).double())
    step(*batches(1)[0])
    alone(*batches(1)[0])
    assert_close(step, alone)


def test_an_empty_batch_after_memory_ran_out_is_a_skipped_update() -> None:
    step = new_step()
    body_of(step).pieces = 4
    assert torch.isnan(step(torch.zeros(0, 4).double(), torch.zeros(0, 2).double()))
    assert bool(step.skipped)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (lambda: 3, "is not a schedule. Pass an object with a method"),
        (lambda step: "a", "returned 'a' at step 0; expected a number"),
        (lambda step: None, "returned None at step 0"),
    ],
)
def test_a_function_that_is_not_a_schedule_is_refused(schedule, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        new_step(schedule=schedule)
    assert message in str(error.value)


def test_the_count_of_skipped_updates_is_live() -> None:
    step = new_step()
    count = step.num_skipped
    step(torch.full((6, 4), torch.nan).double(), torch.zeros(6, 2).double())
    assert count == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda step: pickle.loads(pickle.dumps(step))])
def test_a_step_can_be_copied_and_pickled(copied) -> None:
    step = new_step(clip_norm=1.0)
    data = batches(4)
    step(*data[0])
    twin = copied(step)
    for batch in data[1:]:
        assert torch.equal(step(*batch), twin(*batch))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda step: pickle.loads(pickle.dumps(step))])
def test_a_copy_in_the_middle_of_a_window_has_its_gradients(copied) -> None:
    data = batches(4)
    step = new_step(accumulate=2, clip_norm=0.5)
    for batch in data[:3]:
        step(*batch)
    other = copied(step)
    assert not other.is_between_updates
    for one in (step, other):
        one(*data[3])
    assert all(torch.equal(a, b) for a, b in zip(weights(step), weights(other)))
    assert torch.equal(step.grad_norm, other.grad_norm)
    half = new_step(accumulate=2)
    half(*data[0])
    other = copied(half)
    half.flush()
    assert not torch.equal(weights(other)[0], weights(half)[0])
    other.flush()
    assert all(torch.equal(a, b) for a, b in zip(weights(half), weights(other)))


@pytest.mark.parametrize(
    "settings",
    [
        {"guard": "gradients"},
        {"precision": "fp16"},
        {"precision": "fp16", "clip_norm": 1.0, "clip_value": 0.5},
        {"guard": "gradients", "accumulate": 2},
    ],
    ids=str,
)
def test_sparse_gradients_go_through_guards_and_scaling(settings: dict) -> None:
    def train(*, sparse: bool) -> torch.Tensor:
        torch.manual_seed(0)
        table = nn.Embedding(7, 3, sparse=sparse)
        step = TrainStep(
            table,
            torch.optim.SGD(table.parameters(), lr=0.1),
            lambda m, ids: m(ids).float().square().mean() * ids.sum().float(),
            tier="eager",
            **settings,
        )
        # The last window has batches of two sizes, so its gradients are corrected.
        for ids in ([0, 3, 3], [1, 3, 0], [2, 2, 5], [5]):
            step(torch.tensor(ids))
        assert step.num_skipped == 0
        return table.weight.detach()

    torch.testing.assert_close(train(sparse=True), train(sparse=False))


@pytest.mark.parametrize("settings", [{"guard": "gradients"}, {"precision": "fp16"}], ids=str)
def test_a_sparse_gradient_that_is_not_finite_skips_the_update(settings: dict) -> None:
    table = nn.Embedding(7, 3, sparse=True)
    before = table.weight.detach().clone()
    step = TrainStep(
        table,
        torch.optim.SGD(table.parameters(), lr=0.1),
        lambda m, ids: ((m(ids).float() * 0).sum() + 0.0).sqrt(),
        tier="eager",
        **settings,
    )
    step(torch.tensor([1, 1]))
    assert step.num_skipped == 1
    assert torch.equal(table.weight, before)


class Ascending(torch.optim.SGD):
    """An optimizer that evaluates the model itself, as sharpness-aware ones do."""

    def step(self, closure):
        return super().step(closure)


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(
        StepError, match=r"Ascending\.step\(\) requires 'closure': it evaluates the model itself"
    ):
        TrainStep(model, Ascending(model.parameters(), lr=0.1), mse)


class SharpnessAware(torch.optim.SGD):
    def step(self, closure=None):
        assert closure is not None, "sharpness-aware minimization requires a closure"
        return super().step(closure)


class Broken(torch.optim.SGD):
    def step(self, closure=None):
        assert self.param_groups == [], "no groups expected"


def test_an_optimizer_that_asserts_a_closure_has_the_same_error_and_other_errors_stay() -> None:
    model, batch = nn.Linear(4, 2), (torch.zeros(3, 4), torch.zeros(3, 2))
    step = TrainStep(model, SharpnessAware(model.parameters(), lr=0.1), mse, tier="eager")
    with pytest.raises(
        StepError, match=r"SharpnessAware\.step\(\) requires 'closure': it evaluates the model"
    ):
        step(*batch)
    step = TrainStep(model, Broken(model.parameters(), lr=0.1), mse, tier="eager")
    with pytest.raises(AssertionError, match="no groups expected"):
        step(*batch)


def test_complex_parameters_are_clipped_by_norm_alone() -> None:
    model = nn.Linear(4, 2, dtype=torch.complex64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def size(model, x):
        return model(x).abs().square().mean()

    with pytest.raises(StepError, match=r"clip_value=1\.0 with a complex parameter.*Use clip_norm"):
        TrainStep(model, optimizer, size, clip_value=1.0)
    x = torch.ones(3, 4, dtype=torch.complex64)
    for settings in ({"clip_norm": 1.0}, {"guard": "gradients"}):
        step = TrainStep(model, optimizer, size, tier="eager", **settings)
        assert step(x) > step(x)


def test_a_complex_loss_is_refused() -> None:
    model = nn.Linear(4, 2, dtype=torch.complex64)
    step = TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x).mean(), tier="eager"
    )
    with pytest.raises(StepError, match=r"the loss is complex \(torch\.complex64\).*loss\.real or loss\.abs"):
        step(torch.ones(3, 4, dtype=torch.complex64))


@pytest.mark.parametrize("kind", [torch.optim.RMSprop, torch.optim.Adam, torch.optim.SGD])
def test_a_parameter_whose_first_update_is_skipped_starts_with_the_next_one(kind) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    settings = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(model.parameters(), lr=0.1, **settings)
    step = TrainStep(model, optimizer, lambda m, x: m(x).square().mean(), tier="eager")
    as_on_a_device(step)
    step(torch.ones(3, 2))
    model[0].requires_grad_(True)
    before = model[0].weight.detach().clone()
    step(torch.full((3, 2), torch.nan))
    assert step.num_skipped == 1
    assert torch.equal(model[0].weight, before)
    assert not optimizer.state.get(model[0].weight)
    step(torch.ones(3, 2))
    assert torch.isfinite(model[0].weight).all()
    assert not torch.equal(model[0].weight, before)


def test_on_a_device_the_host_reads_the_flag_only_before_a_first_update() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = TrainStep(model, optimizer, lambda m, x: m(x).square().mean(), tier="eager")
    as_on_a_device(step)
    model[0].requires_grad_(False)
    step(torch.ones(3, 2))
    with nothing_read():
        step(torch.ones(3, 2))
    model[0].requires_grad_(True)
    with pytest.raises(AssertionError, match="the host waits"), nothing_read():
        step(torch.ones(3, 2))
    step(torch.ones(3, 2))
    with nothing_read():
        step(torch.ones(3, 2))


@pytest.mark.parametrize("settings", [{}, {"amsgrad": True}, {"weight_decay": 0.1}])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_a_kernel_that_reads_the_flag_needs_no_host_sync_before_its_first_update(
    kind, settings: dict
) -> None:
    good, bad = torch.ones(3, 2), torch.full((3, 2), torch.nan)
    trained = []
    for batches_given in ([bad, good, bad, good], [good, good]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        optimizer = kind(model.parameters(), lr=0.1, fused=True, **settings)
        step = TrainStep(model, optimizer, lambda m, x: m(x).square().mean(), tier="eager", strict=True)
        # The fused kernel for the CPU reads the flag as well.
        as_on_a_device(step, gates=True)
        with nothing_read():
            for batch in batches_given:
                step(batch)
        trained.append(
            [*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())]
        )
        assert step.num_skipped == len(batches_given) - 2
    assert all(map(torch.equal, *trained))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_fused_kernels_read_the_flag_with_any_default_dtype(kind) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        model = nn.Linear(2, 1)
        step = TrainStep(model, kind(model.parameters(), lr=0.1, fused=True), lambda m, x: m(x).mean())
        as_on_a_device(step, gates=True)
        before = model.weight.detach().clone()
        step(torch.ones(3, 2))
        assert not torch.equal(before, model.weight)
        scaled = TrainStep(
            model, kind(model.parameters(), lr=0.1), lambda m, x: m(x).mean(), precision="fp16", tier="eager"
        )
        scaled(torch.ones(3, 2))
        assert body_of(scaled).scaler.scale.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_optimizer_without_state_needs_no_host_sync_before_its_first_update() -> None:
    model = nn.Linear(2, 1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda m, x: m(x).square().mean(),
        tier="eager",
    )
    as_on_a_device(step)
    with nothing_read():
        step(torch.full((3, 2), torch.nan))
    assert all(map(torch.equal, model.parameters(), before))


def test_finite_gradients_in_half_precision_pass_the_guard() -> None:
    model = nn.Linear(1, 2000, bias=False).half()
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=1e-6),
        lambda m, x: (m(x).float() * 2000).sum(),
        tier="eager",
        guard="gradients",
    )
    step(torch.ones(1, 1).half())
    assert not bool(step.skipped)
    step(torch.full((1, 1), 60000.0).half())
    assert bool(step.skipped)


def test_half_and_other_gradients_are_guarded_together() -> None:
    model = nn.ModuleList([nn.Linear(2, 1).half(), nn.Linear(2, 1).double(), nn.Linear(2, 1)])
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda ms, x: sum(m(x.to(m.weight.dtype)).double().sum() for m in ms),
        tier="eager",
        guard="gradients",
    )
    step(torch.ones(1, 2))
    assert not bool(step.skipped)


def test_trained_tensors_need_not_be_part_of_the_model() -> None:
    prompt = nn.Parameter(torch.zeros(4, 2))
    step = TrainStep(
        nn.Identity(), torch.optim.SGD([prompt], lr=0.1), lambda m, x, y: (m(x) @ prompt - y).square().mean()
    )
    losses = [step(torch.ones(3, 4), torch.ones(3, 2)) for _ in range(3)]
    assert losses[2] < losses[0]


@pytest.mark.parametrize("settings", [{}, {"clip_norm": 1.0}, {"precision": "fp16"}], ids=str)
def test_an_optimizer_whose_parameters_get_no_gradient_is_refused_before_its_first_update(settings) -> None:
    model, other = nn.Linear(4, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, weight_decay=0.5)
    step = TrainStep(model, optimizer, mse, **settings)
    with pytest.raises(
        StepError, match=r"no parameter of the optimizer received a gradient.*model\.parameters\(\).*frozen"
    ):
        step(torch.ones(3, 4), torch.ones(3, 2))
    assert step.updates == 0
    assert step.is_between_updates


@pytest.mark.parametrize("copied_after", [1, 2])
def test_a_copy_whose_step_function_uses_the_original_model_is_refused_in_its_first_update(
    copied_after,
) -> None:
    model = nn.Linear(4, 2)
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda m, x, y: mse(model, x, y),
        accumulate=2,
        tier="eager",
    )
    batch = torch.ones(3, 4), torch.ones(3, 2)
    for _ in range(copied_after):
        step(*batch)
    twin = copy.deepcopy(step)
    # The window of a copy within a window has gradients that were copied.
    for _ in range(2 if copied_after == 1 else 1):
        twin(*batch)
    with pytest.raises(NoGradient, match=r"a different model, such as .* the original of a copied step"):
        twin(*batch)


def test_a_restored_step_whose_parameters_get_no_gradient_is_refused_before_its_first_update() -> None:
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    batch = torch.ones(3, 4), torch.ones(3, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse)
    step(*batch)
    restored = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x, y: mse(other, x, y))
    restored.load_state_dict(step.state_dict())
    with pytest.raises(NoGradient):
        restored(*batch)
    assert restored.updates == 1


def test_a_window_without_gradients_is_allowed_after_the_first_update() -> None:
    model = nn.Linear(4, 2)
    free = nn.Parameter(torch.ones(()))
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda m, x, y: mse(m, x, y) if len(x) > 2 else free * 1.0,
        tier="eager",
    )
    step(torch.ones(3, 4), torch.ones(3, 2))
    before = model.weight.detach().clone()
    step(torch.ones(2, 4), torch.ones(2, 2))
    assert torch.equal(model.weight, before)


def test_a_faster_tier_is_not_tried_before_every_parameter_was_updated() -> None:
    step = new_step(tier="eager")
    body = body_of(step)
    x, y = batches(1)[0]
    assert not body.updater.has_updated
    body.model[0].requires_grad_(False)
    step(x, y)
    assert body.updater.has_updated
    body.model[0].requires_grad_(True)
    assert not body.updater.has_updated
    step(x * torch.nan, y)
    assert not body.updater.has_updated
    step(x, y)
    step(x * torch.nan, y)
    assert body.updater.has_updated


@pytest.mark.parametrize("accumulate", [1, 2])
def test_parameters_of_a_second_optimizer_get_the_gradients_of_one_window(accumulate: int) -> None:
    def new_parts():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).double()
        first = torch.optim.SGD(model[0].parameters(), lr=0.1)
        return model, first, torch.optim.Adam(model[2].parameters(), lr=0.01)

    model, first, second = new_parts()
    step = TrainStep(model, first, mse, accumulate=accumulate)
    plain_model, plain_first, plain_second = new_parts()
    for number, (x, y) in enumerate(batches(6)):
        loss = step(x, y)
        if number % accumulate == 0:
            plain_first.zero_grad()
            plain_second.zero_grad()
        plain_loss = mse(plain_model, x, y)
        (plain_loss / accumulate).backward()
        if step.is_between_updates:
            second.step()
            plain_first.step()
            plain_second.step()
        assert torch.equal(loss, plain_loss.detach())


def test_a_frozen_parameter_outside_the_optimizer_keeps_its_gradient() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).double()
    model[1].weight.grad = torch.ones_like(model[1].weight)
    model[1].requires_grad_(False)
    step = TrainStep(model, torch.optim.SGD(model[0].parameters(), lr=0.1), mse)
    step(*batches(1)[0])
    assert model[1].weight.grad is not None


def test_the_gradients_of_a_parameter_that_was_added_later_are_cleared() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).double()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.0), mse)
    model.append(nn.Linear(2, 2).double())
    step(*batches(1)[0])
    grads = []
    for _ in range(2):
        step(*batches(1)[0])
        grads.append(model[2].weight.grad)
    assert torch.equal(*grads)
