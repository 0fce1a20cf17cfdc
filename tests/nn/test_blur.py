import math

import pytest
import torch
from torch.nn import functional

from flodl.core import ShapeError
from flodl.nn import GaussianBlur, gaussian_blur_2d


def _by_square_kernel(image, sigma):
    radius = math.ceil(3 * sigma)
    offsets = torch.arange(-radius, radius + 1, dtype=image.dtype)
    square = torch.exp(-(offsets[:, None] ** 2 + offsets**2) / (2 * sigma**2))
    channels = image.shape[1]
    weight = (square / square.sum()).expand(channels, 1, -1, -1)
    return functional.conv2d(image, weight, padding=radius, groups=channels)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5])
def test_it_equals_a_zero_padded_convolution_with_the_square_kernel(sigma):
    torch.manual_seed(0)
    image = torch.randn(2, 3, 9, 11, dtype=torch.float64)
    torch.testing.assert_close(gaussian_blur_2d(image, sigma), _by_square_kernel(image, sigma))


@pytest.mark.parametrize("sigma", [0.3, 1.0, 1.1])
def test_a_dot_spreads_over_the_width_of_the_kernel_and_keeps_its_sum(sigma):
    dot = torch.zeros(21, 21, dtype=torch.float64)
    dot[10, 10] = 1.0
    blurred = gaussian_blur_2d(dot, sigma)
    assert int((blurred[10] > 0).sum()) == 2 * math.ceil(3 * sigma) + 1
    assert blurred.sum().item() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("shape", [(5, 5), (3, 5, 5), (2, 3, 5, 5), (2, 2, 3, 5, 5), (0, 3, 5, 5)])
def test_only_the_last_two_dimensions_are_blurred(shape):
    torch.manual_seed(0)
    image = torch.randn(shape)
    blurred = gaussian_blur_2d(image, 1.0)
    assert blurred.shape == image.shape
    if image.numel():
        alone = gaussian_blur_2d(image.reshape(-1, 5, 5)[0], 1.0)
        torch.testing.assert_close(blurred.reshape(-1, 5, 5)[0], alone)


def test_the_gradient_is_right():
    torch.manual_seed(0)
    image = torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(GaussianBlur(0.8), image)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_floating_point_dtype_is_preserved(dtype):
    image = torch.ones(1, 9, 9, dtype=dtype)
    blurred = GaussianBlur(0.5)(image)
    assert blurred.dtype == dtype
    assert float(blurred[0, 4, 4]) == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("nan"), float("inf")])
def test_a_width_that_is_not_above_zero_is_refused(sigma):
    message = rf"sigma={sigma!r}, expected a finite width above 0, in pixels"
    with pytest.raises(ValueError, match=message):
        GaussianBlur(sigma)
    with pytest.raises(ValueError, match=message):
        gaussian_blur_2d(torch.zeros(3, 3), sigma)


@pytest.mark.parametrize("image", [torch.zeros(5), torch.zeros(5, 5, dtype=torch.uint8)])
def test_what_is_not_an_image_is_refused(image):
    with pytest.raises(
        ShapeError, match=r"the image is torch\.\w+ of shape \[.*\]\. Pass a floating-point tensor"
    ):
        gaussian_blur_2d(image, 1.0)


def test_an_image_that_is_not_a_tensor_is_an_error():
    with pytest.raises(ShapeError, match=r"the image is a list\. Pass a floating-point tensor"):
        gaussian_blur_2d([[0.5]], 1.0)
