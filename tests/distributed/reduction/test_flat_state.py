"""The weights of a model as one flat vector, and back, without a change of any bit."""

import pytest
import torch
from torch import nn

from flodl.core.errors import DistributedError
from flodl.distributed.reduction import FlatState


def values(state):
    return state.read(state.empty())


def test_parameters_come_before_float_buffers_and_integers_are_separate():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    state = FlatState.of(model)
    assert (state.size, state.num_parameters, state.num_integers) == (4 + 3 + 4, 4 + 3, 1)
    model[0].running_mean.fill_(5.0)
    assert values(state)[7:].tolist() == [5.0, 5.0, 1.0, 1.0]
    model[0].num_batches_tracked.fill_(3)
    assert state.read_integers().tolist() == [3]


def test_writing_keeps_addresses_and_leaves_gradients_alone():
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    before = [(tensor.data_ptr(), tensor.grad.clone()) for tensor in model.parameters()]
    state = FlatState.of(model)
    state.write(torch.arange(8.0))
    assert torch.equal(model.weight, torch.arange(6.0).view(2, 3))
    for tensor, (address, gradient) in zip(model.parameters(), before):
        assert tensor.data_ptr() == address
        assert tensor.is_leaf
        assert torch.equal(tensor.grad, gradient)


def test_tied_parameters_count_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert FlatState.of(model).size == 16
    # Two parameters in the same memory, which `named_parameters` returns twice.
    model[1].weight = nn.Parameter(model[0].weight.detach())
    state = FlatState.of(model)
    assert state.size == 16
    state.write(torch.zeros(16))
    assert not model[1].weight.any()


def test_parameters_that_are_not_contiguous_scalars_and_empty_ones():
    weight = nn.Parameter(torch.arange(6.0).view(2, 3).t())
    scalar = nn.Parameter(torch.tensor(7.0))
    nothing = nn.Parameter(torch.empty(0, 3))
    state = FlatState([weight, scalar, nothing])
    assert values(state).tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0, 7.0]
    state.write(torch.arange(7.0) + 10)
    assert weight.tolist() == [[10.0, 11.0], [12.0, 13.0], [14.0, 15.0]]
    assert not weight.is_contiguous()
    assert scalar.item() == 16.0


def test_a_model_without_parameters_has_an_empty_vector():
    state = FlatState.of(nn.ReLU())
    assert (state.size, state.num_integers, state.dtype) == (0, 0, torch.float32)
    state.write(values(state))


def test_an_expanded_buffer_is_its_own_memory_only():
    buffer = torch.tensor([[1.0], [2.0]]).expand(2, 1000)
    state = FlatState([], [buffer])
    assert values(state).tolist() == [1.0, 2.0]
    state.write(torch.tensor([3.0, 4.0]))
    assert buffer[1, 500] == 4.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_exact_in_float32_and_rounded_on_the_way_back(dtype):
    low = nn.Parameter(torch.randn(100, dtype=dtype))
    full = nn.Parameter(torch.randn(100))
    before = low.detach().clone()
    state = FlatState([low, full])
    assert state.dtype == torch.float32
    flat = values(state)
    state.write(flat)
    assert torch.equal(low, before)
    moved = flat + 1e-4
    rounded = state.round_(moved.clone())
    state.write(moved)
    assert torch.equal(values(state), rounded)
    assert torch.equal(rounded[100:], moved[100:])


def test_one_float64_tensor_makes_the_vector_float64():
    model = nn.Linear(2, 2)
    model.register_buffer("total", torch.tensor([1.0 + 2**-40], dtype=torch.float64))
    state = FlatState.of(model)
    assert state.dtype == torch.float64
    flat = values(state)
    state.write(flat)
    assert model.total.item() == flat[-1].item() == 1.0 + 2**-40


def test_complex_parameters_are_pairs_of_numbers():
    spectrum = nn.Parameter(torch.tensor([1 + 2j, 3 - 4j]))
    state = FlatState([spectrum])
    assert values(state).tolist() == [1.0, 2.0, 3.0, -4.0]
    state.write(torch.tensor([5.0, 6.0, 7.0, 8.0]))
    assert spectrum.tolist() == [5 + 6j, 7 + 8j]


def test_integer_and_bool_buffers_keep_all_bits():
    count, mask = torch.tensor(2**62 + 1), torch.tensor([True, False])
    state = FlatState([], [count, mask])
    found = state.read_integers()
    assert found.tolist() == [2**62 + 1, 1, 0]
    state.write_integers(torch.tensor([5, 0, 1]))
    assert count.item() == 5
    assert mask.tolist() == [False, True]


def test_tensors_of_another_version_have_the_shapes_and_dtypes_of_the_model():
    model = nn.Sequential(nn.Linear(2, 3).to(torch.bfloat16), nn.BatchNorm1d(3))
    tied = nn.Parameter(torch.randn(3, 2).t())
    given = [*model.parameters(), tied, tied]
    buffers = list(model.buffers())
    state = FlatState(given, buffers)
    flat, integers = values(state) * 2, state.read_integers() + 7
    found = state.tensors(flat, integers)
    state.write(flat)
    state.write_integers(integers)
    assert [(each.shape, each.dtype) for each in found] == [(t.shape, t.dtype) for t in [*given, *buffers]]
    assert all(torch.equal(each, tensor) for each, tensor in zip(found, [*given, *buffers]))


def test_the_layout_is_a_hash_of_shapes_and_dtypes():
    layouts = {
        FlatState.of(model).layout for model in [nn.Linear(2, 3), nn.Linear(3, 2), nn.Linear(2, 3).half()]
    }
    assert len(layouts) == 3
    assert FlatState.of(nn.Linear(2, 3)).layout in layouts


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda: torch.ones(2, 2).to_sparse(), "layout torch.sparse_coo"),
        (lambda: torch.empty(2, device="meta"), "device meta"),
    ],
)
def test_a_tensor_that_cannot_be_averaged_is_an_error_with_its_name(broken, message):
    model = nn.Linear(2, 2)
    model.register_buffer("table", broken())
    with pytest.raises(DistributedError, match=f"at 'table': ranks cannot average .*{message}"):
        FlatState.of(model)


def test_a_lazy_parameter_is_an_error_with_its_name():
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(DistributedError, match=r"at '0\.weight': .*Call the model once"):
        FlatState.of(model)


def test_a_tensor_that_moved_is_an_error_with_its_name():
    model = nn.Linear(2, 2)
    state = FlatState.of(model)
    model.bias.data = torch.zeros(2)
    with pytest.raises(DistributedError, match="at 'bias': the tensor moved"):
        values(state)
