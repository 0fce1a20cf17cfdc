"""Initializers that torch lacks; like those in `torch.nn.init`, they fill a tensor in place and return it."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from .numbers import is_integer, is_number


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Fill with a normal distribution truncated at `a` and `b` standard deviations from the mean.

    `torch.nn.init.trunc_normal_` takes the bounds as values instead, so with std=0.02 its default bounds
    of ±2 truncate nothing. Values outside the bounds are drawn again, so the density inside stays normal;
    the Rust floDl clamps them, which puts about 5 % of the values on the bounds.

    >>> _ = torch.manual_seed(0)
    >>> weight = trunc_normal_(torch.empty(10_000), std=0.02)
    >>> bool(weight.abs().max() <= 0.04), bool((weight.abs() == 0.04).any())
    (True, False)
    """
    if not is_number(mean):
        raise ValueError(f"trunc_normal_: mean={mean!r}, expected a number.")
    if not is_number(std) or not 0 < std < math.inf:
        raise ValueError(f"trunc_normal_: std={std!r}, expected a finite number above 0.")
    if not (is_number(a) and is_number(b)) or not a < b:
        raise ValueError(
            f"trunc_normal_: a={a!r} and b={b!r}; a must be below b. "
            "They are standard deviations from the mean, usually -2 and 2."
        )
    low, high = mean + a * std, mean + b * std
    return torch.nn.init.trunc_normal_(tensor, mean, std, low, high, generator=generator)


def uniform_bias_(tensor: Tensor, fan_in: int, *, generator: Generator | None = None) -> Tensor:
    """Fill uniformly within ±1/√fan_in, as torch's linear and convolution layers fill their biases.

    >>> bool(uniform_bias_(torch.empty(1000), fan_in=16).abs().max() <= 0.25)
    True
    """
    if not is_integer(fan_in) or fan_in < 1:
        raise ValueError(
            f"uniform_bias_: fan_in={fan_in!r}, expected the number of inputs per output, at least 1."
        )
    bound = 1 / math.sqrt(fan_in)
    return torch.nn.init.uniform_(tensor, -bound, bound, generator=generator)
