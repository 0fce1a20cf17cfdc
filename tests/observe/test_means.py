"""Sums on the device: one transfer per device for everything fetched together."""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode

from flodl.observe.means import Mean, RunningSum, device_copy, device_sum, fetch


class CountTransfers(TorchFunctionMode):
    """Count the calls that bring tensors to Python."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.cpu, torch.Tensor.numpy):
            self.count += 1
        return function(*args, **(kwargs or {}))


def test_many_sums_are_fetched_in_one_transfer() -> None:
    sums = [RunningSum(float(start)) for start in range(5)]
    for running in sums:
        for value in (0.5, 0.25):
            running.add(device_copy(torch.tensor(value)))
    with CountTransfers() as transfers:
        fetch([*sums, *sums])
    assert transfers.count == 1
    assert [running.value for running in sums] == [0.75, 1.75, 2.75, 3.75, 4.75]


def test_fetched_sums_cost_no_second_transfer() -> None:
    running = RunningSum()
    running.add(device_copy(torch.tensor(1.0)))
    fetch([running])
    with CountTransfers() as transfers:
        fetch([running])
    assert transfers.count == 0
    assert running.value == 1.0


def test_pending_values_are_added_up_so_that_memory_stays_bounded() -> None:
    running = RunningSum()
    one = torch.tensor(1.0, dtype=torch.float64)
    longest = 0
    for _ in range(10_000):
        running.add(one)
        longest = max(longest, *map(len, running._pending.values()))
    assert longest <= 256
    fetch([running])
    assert running.value == 10_000.0


def test_sums_are_kept_in_double_precision() -> None:
    running = RunningSum(2.0**30)
    running.add(device_sum(torch.full((1000,), 2.0**-10)))
    running.add(device_copy(torch.tensor(2.0**-20)))
    fetch([running])
    assert running.value == 2.0**30 + 1000 * 2.0**-10 + 2.0**-20


def test_a_mean_of_nothing_is_nan() -> None:
    assert str(Mean().value) == "nan"


def test_a_nan_with_a_tensor_weight_of_zero_does_not_count() -> None:
    mean = Mean()
    mean.add(float("nan"), weight=torch.tensor(0.0, dtype=torch.float64))
    mean.add(device_copy(torch.tensor(3.0)), weight=torch.tensor(2.0, dtype=torch.float64))
    fetch(mean.sums)
    assert mean.value == 3.0
