import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from flodl.core import ScheduleError
from flodl.optim import clip_grad_norm, clip_grad_value, gradient_values
from flodl.optim.clipping import norm_and_scale


def _with_grad(values, dtype=torch.float32):
    grad = torch.tensor(values, dtype=dtype)
    parameter = nn.Parameter(torch.zeros_like(grad))
    parameter.grad = grad
    return parameter


class _Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_norm_above_the_limit_is_scaled_down_to_it_and_returned():
    weight = _with_grad([3.0, 4.0])
    norm = clip_grad_norm([weight], 1.0)
    assert norm.shape == ()
    assert norm.item() == 5.0
    assert weight.grad.norm().item() == pytest.approx(1.0, abs=1e-5)


def test_the_norm_is_that_of_all_gradients_together():
    weights = [_with_grad([3.0]), _with_grad([[4.0]]), _with_grad([])]
    assert clip_grad_norm(iter(weights), 10.0).item() == 5.0
    assert clip_grad_norm(weights, 0.5).item() == 5.0
    assert [weight.grad.sum().item() for weight in weights] == pytest.approx([0.3, 0.4, 0.0], abs=1e-5)


def test_a_norm_within_the_limit_changes_no_bit():
    weight = _with_grad([3.0, 4.0])
    clip_grad_norm([weight], 5.0)
    assert weight.grad.tolist() == [3.0, 4.0]


def test_an_infinite_limit_only_measures():
    weight = _with_grad([3.0, 4.0])
    assert clip_grad_norm(weight, float("inf")).item() == 5.0
    assert weight.grad.tolist() == [3.0, 4.0]


def test_a_nan_norm_scales_nothing_and_is_returned():
    sick, healthy = _with_grad([float("nan"), 1.0]), _with_grad([30.0])
    assert clip_grad_norm([sick, healthy], 1.0).isnan()
    assert healthy.grad.item() == 30.0
    assert sick.grad[1].item() == 1.0


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=5), min_size=1, max_size=5),
    st.data(),
)
def test_scaled_gradients_are_bit_for_bit_those_of_torch(values, data):
    ours, theirs = ([_with_grad(row) for row in values] for _ in range(2))
    total = torch.nn.utils.get_total_norm([weight.grad for weight in theirs]).item()
    limit = data.draw(st.floats(0.01, 300).filter(lambda value: abs(value - total) > 1e-4))
    expected = torch.nn.utils.clip_grad_norm_(theirs, limit)
    assert torch.equal(clip_grad_norm(ours, limit), expected)
    for mine, other in zip(ours, theirs):
        assert torch.equal(mine.grad, other.grad)


@pytest.mark.parametrize("limit", [0.5, 50.0])
def test_the_scale_is_what_clipping_multiplies_by(limit):
    ours, theirs = ([_with_grad([3.0, -0.1]), _with_grad([4.0])] for _ in range(2))
    norm, scale = norm_and_scale(ours, limit)
    assert torch.equal(norm, clip_grad_norm(theirs, limit))
    assert ours[1].grad.item() == 4.0
    for mine, other in zip(ours, theirs):
        assert torch.equal(mine.grad * scale, other.grad)


def test_the_scale_without_gradients_is_one():
    assert norm_and_scale([torch.nn.Parameter(torch.ones(2))], 1.0) == (0.0, 1.0)


def test_values_are_clamped_and_the_largest_magnitude_is_returned():
    weights = [_with_grad([10.0, -5.0]), _with_grad([1.0]), _with_grad([])]
    largest = clip_grad_value(weights, 2.0)
    assert largest.shape == ()
    assert largest.item() == 10.0
    assert weights[0].grad.tolist() == [2.0, -2.0]
    assert weights[1].grad.tolist() == [1.0]


@pytest.mark.parametrize("clip", [clip_grad_norm, clip_grad_value])
def test_without_gradients_the_result_is_zero(clip):
    assert clip([], 1.0).item() == 0.0
    assert clip(nn.Parameter(torch.zeros(2)), 1.0).item() == 0.0
    assert clip(nn.Identity(), 1.0).item() == 0.0


@pytest.mark.parametrize("clip", [clip_grad_norm, clip_grad_value])
def test_a_module_stands_for_its_parameters(clip):
    model = nn.Linear(3, 2)
    model(torch.full((4, 3), 100.0)).sum().backward()
    assert clip(model, 1.0).item() > 1.0
    assert all(parameter.grad.abs().max() <= 1.0 for parameter in model.parameters())


def test_gradients_of_several_types_are_one_norm():
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
    weights = [_with_grad([2.0], dtype) for dtype in dtypes]
    assert clip_grad_norm(weights, 2.0).item() == pytest.approx(4.0)
    assert [weight.grad.item() for weight in weights] == pytest.approx([1.0] * 4, abs=1e-5)
    assert [weight.grad.dtype for weight in weights] == dtypes
    assert clip_grad_value(weights, 0.5).item() == pytest.approx(1.0, abs=1e-5)


def test_the_norm_of_half_precision_gradients_does_not_overflow():
    weight = _with_grad([60_000.0, 60_000.0], torch.float16)
    norm = clip_grad_norm(weight, 1.0)
    assert norm.item() == pytest.approx(60_000 * 2**0.5)
    assert weight.grad.float().norm().item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("clip", "expected", "kept"), [(clip_grad_norm, 5.0, 0.6), (clip_grad_value, 4.0, 1.0)]
)
def test_a_sparse_gradient_counts_with_its_repeated_rows_added(clip, expected, kept):
    table = nn.Embedding(10, 1, sparse=True)
    weights = torch.tensor([1.0, 2.0, 4.0])
    (table(torch.tensor([3, 3, 7])).squeeze(-1) * weights).sum().backward()
    assert clip(table, 1.0).item() == pytest.approx(expected)
    assert table.weight.grad.to_dense()[3].item() == pytest.approx(kept, abs=1e-5)


@pytest.mark.parametrize("clip", [clip_grad_norm, clip_grad_value])
def test_clipping_reads_nothing_on_the_host(clip):
    weights = [_with_grad([30.0, 40.0]), _with_grad([1.0], torch.float64), _with_grad([2.0], torch.bfloat16)]
    with _Operations() as operations:
        clip(weights, 1.0)
    assert [name for name in operations.names if "_foreach" in name]
    assert not [name for name in operations.names if "_local_scalar_dense" in name]


@pytest.mark.parametrize("clip", [clip_grad_norm, clip_grad_value])
def test_the_number_of_operations_does_not_grow_with_the_parameters(clip):
    counts = []
    for size in (2, 50):
        weights = [_with_grad([30.0, 40.0]) for _ in range(size)]
        with _Operations() as operations:
            clip(weights, 1.0)
        counts.append(len(operations.names))
    assert counts[0] == counts[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("clip", [clip_grad_norm, clip_grad_value])
def test_clipping_never_synchronizes_and_can_be_captured(clip):
    dtypes = [torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16]
    weights = [nn.Parameter(torch.zeros(3, dtype=dtype, device="cuda")) for dtype in dtypes]
    for weight in weights:
        weight.grad = torch.full_like(weight, 4.0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        clip(weights, 100.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        measured = clip(weights, 1.0)
    for weight in weights:
        weight.grad.fill_(4.0)
    graph.replay()
    expected = (15 * 16) ** 0.5 if clip is clip_grad_norm else 4.0
    assert measured.item() == pytest.approx(expected)
    total = torch.stack([weight.grad.double().norm() for weight in weights]).norm().item()
    assert total == pytest.approx(1.0 if clip is clip_grad_norm else 15**0.5, abs=2e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("clip", "expected"), [(clip_grad_norm, 5.0), (clip_grad_value, 4.0)])
def test_gradients_on_several_devices_are_clipped_together(clip, expected):
    far = nn.Parameter(torch.zeros(1, device="cuda"))
    far.grad = torch.tensor([4.0], device="cuda")
    near = _with_grad([3.0])
    result = clip([near, far], 1.0)
    assert result.device == near.device
    assert result.item() == expected
    assert far.grad.item() == pytest.approx(0.8 if clip is clip_grad_norm else 1.0, abs=1e-5)


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), None, "1"])
def test_a_limit_that_is_not_above_zero_is_rejected(limit):
    weight = _with_grad([3.0])
    with pytest.raises(
        ScheduleError, match=rf"clip_grad_norm: max_norm={limit!r}, expected a number above 0\. Pass"
    ):
        clip_grad_norm(weight, limit)
    with pytest.raises(
        ScheduleError, match=rf"clip_grad_value: value={limit!r}, expected a number above 0\. Pass"
    ):
        clip_grad_value(weight, limit)


def test_named_parameters_in_place_of_parameters_are_rejected():
    message = r"clip_grad_norm: item 0 of the parameters is a tuple, not a tensor\. Pass the model itself"
    with pytest.raises(ScheduleError, match=message):
        clip_grad_norm(nn.Linear(2, 2).named_parameters(), 1.0)


def test_complex_gradients_are_scaled_and_never_clamped():
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.complex64))
    weight.grad = torch.tensor([3 + 4j])
    with pytest.raises(ScheduleError, match=r"a gradient is complex.*Use clip_grad_norm"):
        clip_grad_value([weight], 1.0)
    assert clip_grad_norm([weight], 1.0) == 5
    torch.testing.assert_close(weight.grad, torch.tensor([0.6 + 0.8j]))


@pytest.mark.parametrize("clip", [clip_grad_norm, clip_grad_value])
@pytest.mark.parametrize("parameters", [None, 3, object()])
def test_parameters_that_cannot_be_listed_are_an_error(clip, parameters):
    with pytest.raises(ScheduleError, match=rf"the parameters are an? {type(parameters).__name__}"):
        clip(parameters, 1.0)


@pytest.mark.parametrize("parameters", [None, "abc", [1, 2]])
def test_gradient_values_of_something_else_than_parameters_are_an_error(parameters):
    with pytest.raises(ScheduleError, match=r"gradient_values: .*Pass the model itself"):
        gradient_values(parameters)
