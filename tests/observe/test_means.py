"""Sums on the device: one transfer for each device, whatever is settled together."""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode

from flodl.observe.means import Mean, Tally, device_copy, device_sum, settle


class CountTransfers(TorchFunctionMode):
    """Count the calls that bring tensors to Python."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.cpu, torch.Tensor.numpy):
            self.count += 1
        return function(*args, **(kwargs or {}))


def test_many_tallies_settle_in_one_transfer() -> None:
    tallies = [Tally(float(start)) for start in range(5)]
    for tally in tallies:
        for value in (0.5, 0.25):
            tally.add(device_copy(torch.tensor(value)))
    with CountTransfers() as transfers:
        settle([*tallies, *tallies])
    assert transfers.count == 1
    assert [tally.value for tally in tallies] == [0.75, 1.75, 2.75, 3.75, 4.75]


def test_what_is_settled_costs_no_second_transfer() -> None:
    tally = Tally()
    tally.add(device_copy(torch.tensor(1.0)))
    settle([tally])
    with CountTransfers() as transfers:
        settle([tally])
    assert transfers.count == 0
    assert tally.value == 1.0


def test_waiting_values_are_added_up_so_that_memory_stays_bounded() -> None:
    tally = Tally()
    one = torch.tensor(1.0, dtype=torch.float64)
    longest = 0
    for _ in range(10_000):
        tally.add(one)
        longest = max(longest, *map(len, tally._waiting.values()))
    assert longest <= 256
    settle([tally])
    assert tally.value == 10_000.0


def test_sums_are_kept_in_double_precision() -> None:
    tally = Tally(2.0**30)
    tally.add(device_sum(torch.full((1000,), 2.0**-10)))
    tally.add(device_copy(torch.tensor(2.0**-20)))
    settle([tally])
    assert tally.value == 2.0**30 + 1000 * 2.0**-10 + 2.0**-20


def test_a_mean_of_nothing_is_nan() -> None:
    assert str(Mean().value) == "nan"


def test_a_tensor_weight_of_zero_silences_a_nan() -> None:
    mean = Mean()
    mean.add(float("nan"), weight=torch.tensor(0.0, dtype=torch.float64))
    mean.add(device_copy(torch.tensor(3.0)), weight=torch.tensor(2.0, dtype=torch.float64))
    settle(mean.tallies)
    assert mean.value == 3.0
