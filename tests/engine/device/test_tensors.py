import pytest
import torch

from flodl.engine.device import tensors
from flodl.engine.device.tensors import square_sum


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_a_sum_of_squares_in_pieces_equals_the_whole(dtype, monkeypatch):
    one, other = (10 * torch.randn(7, 5)).to(dtype), (10 * torch.randn(7, 5)).to(dtype)
    whole = square_sum(one), square_sum(one, other)
    monkeypatch.setattr(tensors, "ELEMENTS_AT_ONCE", 4)
    for value, expected in zip((square_sum(one), square_sum(one, other)), whole):
        torch.testing.assert_close(value, expected, rtol=1e-14, atol=0)


def test_strides_do_not_change_a_sum_of_squares(monkeypatch):
    images = torch.randn(2, 3, 4, 5)
    monkeypatch.setattr(tensors, "ELEMENTS_AT_ONCE", 4)
    assert square_sum(images, images.to(memory_format=torch.channels_last)) == 0
