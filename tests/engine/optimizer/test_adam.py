"""What the recorded form of Adam takes and what it leaves to torch; its numbers are compared on a GPU."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from flodl.engine.optimizer.adam import FastAdam, _steps_as_torch, fast_adam, is_supported_group


def optimizer_of(*sizes: int | tuple[int, ...], kind=torch.optim.Adam, **settings) -> torch.optim.Optimizer:
    """Give an optimizer that was stepped once, with float32 counts as on a GPU."""
    parameters = [nn.Parameter(torch.randn(size)) for size in sizes]
    optimizer = kind(parameters, lr=torch.tensor(1e-3), fused=True, **settings)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer


def quick(optimizer: torch.optim.Optimizer, size: int = 8) -> FastAdam:
    bad, skipped = (torch.zeros((), dtype=kind, device="cpu") for kind in (torch.float32, torch.float64))
    return FastAdam(optimizer, bad, skipped, size=size)


def test_blocks_cover_every_number_once() -> None:
    optimizer = optimizer_of(20, 8, 3)
    made = quick(optimizer)
    assert made.gather()
    made.write_tables()
    found = []
    for weights, grads, means, squares, which, count in made._rows.tolist():
        parameter = optimizer.param_groups[0]["params"][which]
        start = (weights - parameter.data_ptr()) // 4
        assert (grads - parameter.grad.data_ptr()) // 4 == start
        state = optimizer.state[parameter]
        assert (means - state["exp_avg"].data_ptr()) // 4 == start
        assert (squares - state["exp_avg_sq"].data_ptr()) // 4 == start
        found += [(which, number) for number in range(start, start + count)]
    assert found == [(0, n) for n in range(20)] + [(1, n) for n in range(8)] + [(2, n) for n in range(3)]


def test_parameters_without_a_gradient_are_left_out() -> None:
    optimizer = optimizer_of(16, 4)
    first = optimizer.param_groups[0]["params"][0]
    first.grad = None
    made = quick(optimizer)
    assert made.gather()
    assert [len(said) for _, said in made._said] == [1, 1, 1, 1]


def test_numbers_of_another_kind_or_layout_are_left_to_torch() -> None:
    for change in (lambda p: p.data.double(), lambda p: p.data[::2]):
        optimizer = optimizer_of(16)
        (parameter,) = optimizer.param_groups[0]["params"]
        parameter.grad = None
        parameter.data = change(parameter)
        parameter.grad = torch.ones_like(parameter)
        assert not quick(optimizer).gather()


def test_a_step_of_one_has_no_say_in_how_numbers_lie() -> None:
    """Gradients of 1x1 convolutions come with the channels last, which is the same in memory."""
    optimizer = optimizer_of((8, 4, 1, 1))
    (parameter,) = optimizer.param_groups[0]["params"]
    parameter.grad = parameter.grad.to(memory_format=torch.channels_last)
    assert parameter.grad.stride() != parameter.stride()
    assert quick(optimizer).gather()


def test_tensors_that_keep_their_numbers_elsewhere_are_left_to_torch() -> None:
    class Apart(torch.Tensor):
        """As those are that lie on several devices; their address is not that of their numbers."""

    optimizer = optimizer_of(16)
    (parameter,) = optimizer.param_groups[0]["params"]
    parameter.grad = parameter.grad.as_subclass(Apart)
    assert not quick(optimizer).gather()


@pytest.mark.parametrize("rate", [1e-3, torch.tensor(1e-3, dtype=torch.float64)])
def test_a_learning_rate_of_another_kind_is_left_to_torch(rate) -> None:
    optimizer = optimizer_of(16)
    optimizer.param_groups[0]["lr"] = rate
    assert not quick(optimizer).gather()


def test_what_torch_takes_by_default_has_no_say_in_the_tables() -> None:
    optimizer = optimizer_of(16)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            made = quick(optimizer)
            assert made.gather()
    finally:
        torch.set_default_dtype(torch.float32)
    assert made._settings.dtype is made._powers.dtype is torch.float32
    assert all(said.device.type == "cpu" for _, said in made._said)


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
def test_only_forms_whose_bits_are_known_are_taken(kind, settings, taken: bool) -> None:
    assert is_supported_group(optimizer_of(4, kind=kind, **settings).param_groups[0]) is taken


def test_a_step_that_somebody_wrapped_is_left_alone() -> None:
    optimizer = optimizer_of(4)
    torch.optim.lr_scheduler.StepLR(optimizer, 2)
    assert _steps_as_torch(optimizer)
    usual = optimizer.step

    @functools.wraps(usual)
    def clamped(closure=None):
        usual(closure)

    optimizer.step = clamped
    assert not _steps_as_torch(optimizer)


def test_there_is_no_quick_form_without_a_gpu_or_for_other_optimizers() -> None:
    bad, skipped = torch.zeros(()), torch.zeros((), dtype=torch.float64)
    assert fast_adam(optimizer_of(4), bad, skipped) is None
    assert fast_adam(torch.optim.SGD([nn.Parameter(torch.ones(1))]), bad, skipped) is None
