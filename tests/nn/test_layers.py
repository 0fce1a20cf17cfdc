import pytest
import torch

from flodl.core import ShapeError
from flodl.nn import Reshape, StateAdd


def test_reshape_takes_the_full_shape_with_the_batch():
    x = torch.arange(16.0).reshape(2, 8)
    assert torch.equal(Reshape(4, 4)(x), x.reshape(4, 4))
    assert Reshape((4, 4))(x).shape == Reshape([4, 4])(x).shape == Reshape(torch.Size([4, 4]))(x).shape
    assert repr(Reshape(4, 4)) == "Reshape(4, 4)"


def test_one_dimension_may_be_inferred():
    assert Reshape(-1, 4)(torch.zeros(3, 8)).shape == (6, 4)
    assert Reshape(-1, 4)(torch.zeros(0, 8)).shape == (0, 4)


def test_the_gradient_passes_a_reshape():
    x = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Reshape(3, 4), x)


@pytest.mark.parametrize("shape", [(-1, -1), (0, 2), (-2, 2), (2, 1.5)])
def test_what_is_not_a_shape_is_refused(shape):
    with pytest.raises(
        ShapeError, match=r"Reshape\(.*\) is not a shape\. Pass integers above 0, the batch first"
    ):
        Reshape(*shape)


@pytest.mark.parametrize("shape", [(4, 4), (-1, 4)])
def test_elements_that_do_not_fit_the_shape_are_refused(shape):
    message = (
        r"Reshape\(-?\d, 4\) cannot reshape \[2, 5\]: 10 elements do not fit\. .* use -1 for a batch size"
    )
    with pytest.raises(ShapeError, match=message):
        Reshape(*shape)(torch.zeros(2, 5))


def test_state_add_returns_the_stream_when_nothing_is_referenced():
    x = torch.ones(2)
    assert StateAdd()(x) is x
    assert StateAdd()(x, memory=None) is x


def test_state_add_adds_the_references_in_the_given_order():
    # Floating-point sums depend on their order: 1e8 − 1e8 + 1 is 1, and 1 − 1e8 + 1e8 is 0 in float32.
    huge, one = torch.tensor(1e8), torch.tensor(1.0)
    assert StateAdd()(huge, a=-huge, b=one).item() == 1.0
    assert StateAdd()(one, a=-huge, b=huge).item() == 0.0


def test_a_reference_may_have_the_name_of_the_stream():
    assert StateAdd()(torch.tensor(1.0), x=torch.tensor(2.0)).item() == 3.0


def test_the_gradient_reaches_the_stream_and_every_reference():
    x, memory = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda a, b: StateAdd()(a, first=b, second=a, none=None), (x, memory))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch 2.11's own import
def test_both_compile_into_one_graph():
    reshape, add = Reshape(-1, 2), StateAdd()

    def run(x):
        return add(reshape(x), ref=x.reshape(-1, 2))

    compiled = torch.compile(run, backend="eager", fullgraph=True)
    x = torch.randn(3, 4)
    assert torch.equal(compiled(x), run(x))
