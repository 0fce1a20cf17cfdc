import pytest
import torch

from flodl.nn import trunc_normal_, uniform_bias_


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_bounds_count_standard_deviations_from_the_mean(dtype):
    torch.manual_seed(0)
    tensor = torch.empty(20_000, dtype=dtype)
    assert trunc_normal_(tensor, 1.0, 0.5, -1.0, 3.0) is tensor
    assert tensor.min() >= 0.5
    assert tensor.max() <= 2.5


def test_values_outside_the_bounds_are_drawn_again_not_clamped():
    torch.manual_seed(0)
    tensor = trunc_normal_(torch.empty(200_000, dtype=torch.float64), 0.0, 0.02, -1.0, 1.0)
    assert not (tensor.abs() == 0.02).any()
    # Truncated at one standard deviation, a normal variable has variance 1 − 2φ(1)/(2Φ(1) − 1) = 0.2911.
    assert (tensor / 0.02).var().item() == pytest.approx(0.2911, abs=0.004)


def test_the_same_generator_gives_the_same_values():
    first, second = (
        trunc_normal_(torch.empty(9), generator=torch.Generator().manual_seed(3)) for _ in range(2)
    )
    assert torch.equal(first, second)


def test_a_parameter_stays_trainable():
    weight = torch.nn.Parameter(torch.empty(3))
    assert trunc_normal_(weight).requires_grad
    assert uniform_bias_(weight, 4).requires_grad


def test_a_bias_is_uniform_within_one_over_the_root_of_the_inputs():
    torch.manual_seed(0)
    bias = uniform_bias_(torch.empty(10_000), 16)
    assert bias.abs().max() <= 0.25
    assert bias.std().item() == pytest.approx(0.25 / 3**0.5, rel=0.02)


def test_arguments_out_of_range_are_refused():
    tensor = torch.empty(3)
    with pytest.raises(ValueError, match=r"trunc_normal_: std=0, expected a finite number above 0"):
        trunc_normal_(tensor, 0.0, 0)
    with pytest.raises(
        ValueError, match=r"a=2\.0 and b=-2\.0; a must be below b\. They are standard deviations"
    ):
        trunc_normal_(tensor, a=2.0, b=-2.0)
    with pytest.raises(
        ValueError, match=r"uniform_bias_: fan_in=0, expected the number of inputs per output"
    ):
        uniform_bias_(tensor, 0)
