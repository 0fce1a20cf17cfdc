"""Which updates the fast Adam supports, and which it leaves to torch; its numbers are compared on a GPU."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from flodl.engine import TrainStep
from flodl.engine.optimizer.adam import FastAdam, fast_adam, has_torch_step, is_supported_group


def optimizer_of(*sizes: int | tuple[int, ...], kind=torch.optim.Adam, **settings) -> torch.optim.Optimizer:
    """Return an optimizer that was stepped once, with float32 step counts as on a GPU."""
    parameters = [nn.Parameter(torch.randn(size)) for size in sizes]
    optimizer = kind(parameters, lr=torch.tensor(1e-3), fused=True, **settings)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer


def fast(optimizer: torch.optim.Optimizer, size: int = 8) -> FastAdam:
    bad, skipped = (torch.zeros((), dtype=kind, device="cpu") for kind in (torch.float32, torch.float64))
    return FastAdam(optimizer, bad, skipped, checks_gradients=True, size=size)


def test_blocks_cover_every_element_once() -> None:
    optimizer = optimizer_of(20, 8, 3)
    adam = fast(optimizer)
    assert adam.gather()
    adam.write_tables()
    found = []
    for weights, grads, means, squares, index, count in adam.rows.tolist():
        parameter = optimizer.param_groups[0]["params"][index]
        start = (weights - parameter.data_ptr()) // 4
        assert (grads - parameter.grad.data_ptr()) // 4 == start
        state = optimizer.state[parameter]
        assert (means - state["exp_avg"].data_ptr()) // 4 == start
        assert (squares - state["exp_avg_sq"].data_ptr()) // 4 == start
        assert (count < 0) == (start == 0), "the first block of a parameter has a negative length"
        found += [(index, number) for number in range(start, start + abs(count))]
    assert found == [(0, n) for n in range(20)] + [(1, n) for n in range(8)] + [(2, n) for n in range(3)]


def test_parameters_without_a_gradient_are_left_out() -> None:
    optimizer = optimizer_of(16, 4)
    first = optimizer.param_groups[0]["params"][0]
    first.grad = None
    adam = fast(optimizer)
    assert adam.gather()
    assert [len(contents) for _, contents in adam.contents] == [1, 1, 1, 1]


def test_other_dtypes_and_layouts_are_left_to_torch() -> None:
    for change in (lambda p: p.data.double(), lambda p: p.data[::2]):
        optimizer = optimizer_of(16)
        (parameter,) = optimizer.param_groups[0]["params"]
        parameter.grad = None
        parameter.data = change(parameter)
        parameter.grad = torch.ones_like(parameter)
        assert not fast(optimizer).gather()


def test_parameters_that_share_a_gradient_are_left_to_torch() -> None:
    """Clipping would scale it once for each of them, in any order."""
    optimizer = optimizer_of(16, 16)
    first, second = optimizer.param_groups[0]["params"]
    second.grad = first.grad
    assert not fast(optimizer).gather()


def test_the_stride_of_a_dimension_of_size_one_does_not_matter() -> None:
    """Gradients of 1x1 convolutions are in channels-last format, which is the same in memory."""
    optimizer = optimizer_of((8, 4, 1, 1))
    (parameter,) = optimizer.param_groups[0]["params"]
    parameter.grad = parameter.grad.to(memory_format=torch.channels_last)
    assert parameter.grad.stride() != parameter.stride()
    assert fast(optimizer).gather()


def test_tensor_subclasses_are_left_to_torch() -> None:
    class Apart(torch.Tensor):
        """Like a tensor on several devices: its data is not at its data pointer."""

    optimizer = optimizer_of(16)
    (parameter,) = optimizer.param_groups[0]["params"]
    parameter.grad = parameter.grad.as_subclass(Apart)
    assert not fast(optimizer).gather()


@pytest.mark.parametrize("rate", [1e-3, torch.tensor(1e-3, dtype=torch.float64)])
def test_a_learning_rate_of_another_kind_is_left_to_torch(rate) -> None:
    optimizer = optimizer_of(16)
    optimizer.param_groups[0]["lr"] = rate
    assert not fast(optimizer).gather()


def test_default_dtype_and_device_do_not_affect_the_tables() -> None:
    optimizer = optimizer_of(16)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            adam = fast(optimizer)
            assert adam.gather()
    finally:
        torch.set_default_dtype(torch.float32)
    assert {table.dtype for table, _ in adam.contents} == {torch.float32, torch.int64}
    assert all(contents.device.type == "cpu" for _, contents in adam.contents)


@pytest.mark.parametrize(
    ("kind", "settings", "taken"),
    [
        (torch.optim.Adam, {}, True),
        (torch.optim.AdamW, {"weight_decay": 0.1}, True),
        (torch.optim.Adam, {"weight_decay": 0.1}, False),
        (torch.optim.Adam, {"amsgrad": True}, False),
        (torch.optim.Adam, {"maximize": True}, False),
    ],
)
def test_only_settings_with_known_bits_are_supported(kind, settings, taken: bool) -> None:
    assert is_supported_group(optimizer_of(4, kind=kind, **settings).param_groups[0]) is taken


def test_a_wrapped_optimizer_step_is_left_alone() -> None:
    optimizer = optimizer_of(4)
    torch.optim.lr_scheduler.StepLR(optimizer, 2)
    assert has_torch_step(optimizer)
    usual = optimizer.step

    @functools.wraps(usual)
    def clamped(closure=None):
        usual(closure)

    optimizer.step = clamped
    assert not has_torch_step(optimizer)


@pytest.mark.parametrize("schedule", ["none", "before", "after"])
def test_the_optimizer_of_a_train_step_has_the_step_of_torch(schedule: str) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    if schedule == "before":
        torch.optim.lr_scheduler.StepLR(optimizer, 2)
    TrainStep(model, optimizer, lambda model, x: model(x).sum())
    if schedule == "after":
        torch.optim.lr_scheduler.StepLR(optimizer, 2)
    assert has_torch_step(optimizer)
    usual = optimizer.step
    optimizer.step = lambda: usual()
    assert not has_torch_step(optimizer)


def test_there_is_no_fast_update_without_a_gpu_or_for_other_optimizers() -> None:
    bad, skipped = torch.zeros(()), torch.zeros((), dtype=torch.float64)
    assert fast_adam(optimizer_of(4), bad, skipped, checks_gradients=True) is None
    assert (
        fast_adam(torch.optim.SGD([nn.Parameter(torch.ones(1))]), bad, skipped, checks_gradients=True) is None
    )
