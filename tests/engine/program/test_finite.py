"""The check of gradients for NaN and infinity."""

import pytest
import torch

from flodl.engine.program.finite import FiniteCheck

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]


def is_flagged(*grads):
    bad = torch.zeros(())
    FiniteCheck(bad)(grads)
    return bool(bad)


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_element_that_is_not_finite_sets_the_flag(dtype, number, size):
    grad = torch.ones(size, dtype=dtype)
    assert not is_flagged(torch.ones(3), grad)
    grad[size // 2] = number
    assert is_flagged(torch.ones(3), grad)
    assert is_flagged(grad, torch.ones(3))


@pytest.mark.parametrize("size", [5, 10_000])
@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_the_largest_finite_numbers_pass(dtype, size):
    assert not is_flagged(torch.full((size,), torch.finfo(dtype).max, dtype=dtype))


@pytest.mark.parametrize("size", [5, 10_000])
def test_gradients_keep_their_bits(size):
    grad = torch.randn(size) * 1e-42
    before = grad.clone()
    is_flagged(grad)
    assert torch.equal(grad.view(torch.int32), before.view(torch.int32))


def test_infinities_of_both_signs_do_not_cancel():
    grad = torch.ones(10_000)
    grad[0], grad[-1] = torch.inf, -torch.inf
    assert is_flagged(grad)


def test_a_sparse_gradient_is_checked_and_not_coalesced():
    grad = torch.sparse_coo_tensor([[1, 1]], [[1.0, 2.0], [3.0, torch.nan]], (4, 2), check_invariants=True)
    assert is_flagged(grad)
    assert not grad.is_coalesced()
    assert not is_flagged(torch.sparse_coo_tensor([[1, 1]], [[1.0], [2.0]], (4, 1), check_invariants=True))


def test_a_subclass_of_tensor_is_checked():
    class Other(torch.Tensor):
        """Some other kind of tensor."""

    assert is_flagged(torch.tensor([torch.nan]).as_subclass(Other))


def test_the_flag_stays_set():
    bad = torch.ones(())
    FiniteCheck(bad)([torch.ones(3)])
    assert bool(bad)


def test_no_gradients_are_finite():
    assert not is_flagged()
