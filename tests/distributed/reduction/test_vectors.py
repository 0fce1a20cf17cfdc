"""Arithmetic on flat vectors: the host sends no numbers to the device, and reads them all at once."""

import torch
from torch.overrides import TorchFunctionMode

from flodl.distributed.reduction import Mean
from flodl.distributed.reduction.vectors import advance, divide_
from flodl.distributed.reduction.wire import BFloat16Wire

# Each of these copies between the host and the device, and waits for it.
WAITS = {torch.tensor: "torch.tensor", torch.Tensor.item: "item", torch.Tensor.tolist: "tolist"}


class Waits(TorchFunctionMode):
    """Records calls that would wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in WAITS:
            self.found.append(WAITS[func])
        return func(*args, **(kwargs or {}))


class Alone:
    """A link of one member."""

    index, size = 0, 1

    def exchange(self, out, tensor, deadline) -> int:
        out.copy_(tensor)
        return 0


def test_a_division_does_not_wait_for_the_device():
    given = torch.tensor([1.0, 2.0, -5.0])
    expected = given / torch.tensor(3.0)
    with Waits() as waits:
        divided = divide_(given, 3.0)
    assert torch.equal(divided, expected)
    assert waits.found == []


def test_the_wire_of_16_bits_does_not_wait_for_the_device():
    vector = torch.tensor([1.0, 2.0, -5.0])
    with Waits() as waits:
        BFloat16Wire().combine_(Alone(), vector, (3,), 0.0)
    assert vector.tolist() == [1.0, 2.0, -5.0]
    assert waits.found == []


def test_a_new_version_is_computed_with_one_wait_for_the_device():
    base, own = torch.tensor([3.0, 4.0]), torch.tensor([4.0, 4.0])
    # This rank moved by (1, 0), the mean of all ranks is (1, 2).
    total = torch.tensor([2.0, 4.0])
    with Waits() as waits:
        divergence, is_finite = advance(total, 2.0, base, own, base, Mean(), None)
    assert waits.found == ["tolist"]
    assert (total.tolist(), is_finite) == ([4.0, 6.0], True)
    assert divergence == (4.0 / 52.0) ** 0.5
