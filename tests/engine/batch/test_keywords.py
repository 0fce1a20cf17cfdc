"""Batches that are passed by keyword."""

import pytest
import torch
from torch import Tensor, nn

from flodl import TrainStep
from flodl.core import StepError

X, Y = torch.randn(8, 4), torch.randn(8, 1)


def loss_of(model: nn.Module, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
    return (model(x) - y).square().mean() * scale


def of_keywords(model: nn.Module, **batch: Tensor) -> Tensor:
    return (model(batch["x"]) - batch["y"]).square().mean()


def of_keyword_only(model: nn.Module, *, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def new_step(step_fn=loss_of, **options) -> TrainStep:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, **options)


def test_a_batch_may_be_passed_by_keyword_in_any_order():
    want = [float(step(X, Y)) for step in [new_step()] for _ in range(3)]
    for call in (
        lambda s: s(x=X, y=Y),
        lambda s: s(y=Y, x=X),
        lambda s: s(X, y=Y),
    ):
        step = new_step()
        assert [float(call(step)) for _ in range(3)] == want


@pytest.mark.parametrize("step_fn", [of_keywords, of_keyword_only])
def test_a_step_function_may_take_its_batch_by_keyword_alone(step_fn):
    step, plain = new_step(step_fn), new_step()
    assert [float(step(x=X, y=Y)) for _ in range(3)] == [float(plain(X, Y)) for _ in range(3)]
    assert float(step({"x": X, "y": Y})) == float(plain(X, Y))


def test_defaults_in_front_of_a_keyword_are_filled_in():
    assert float(new_step()(X, Y, scale=0.0)) == 0
    with_default = new_step(lambda model, x, y=Y, scale=1.0: loss_of(model, x, y, scale))
    assert float(with_default(x=X, scale=0.0)) == 0


def test_a_padded_batch_passes_its_mask():
    def step_fn(model: nn.Module, *, mask: Tensor, **batch: Tensor) -> Tensor:
        rows = (model(batch["x"]) - batch["y"]).square().mean(1)
        return (rows * mask).sum() / mask.sum()

    step, plain = new_step(step_fn, tail="pad"), new_step()
    assert float(step(x=X, y=Y)) == pytest.approx(float(plain(X, Y)))
    assert float(step(x=X[:3], y=Y[:3])) == pytest.approx(float(plain(X[:3], Y[:3])))


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        (
            (X, Y),
            {"epoch": 1},
            r"keyword arguments \(epoch\).*no parameter 'epoch': .*\(model, x, y, scale\).*add a par",
        ),
        ((X,), {"x": X}, "'x' is also passed by position"),
        ((), {"x": X}, "'y' is missing: the step function takes"),
    ],
)
def test_keywords_that_do_not_fit_say_what_the_function_takes(args, named, message):
    with pytest.raises(StepError, match=message):
        new_step()(*args, **named)


def test_a_function_of_keywords_says_how_to_call_it():
    with pytest.raises(
        StepError, match=r"takes the batch by keyword, and is called with.*Write step\(\*\*batch\)"
    ):
        new_step(of_keyword_only)(X, Y)
    with pytest.raises(StepError, match=r"of_keyword_only\(model, x, y\).*missing a required argument: 'y'"):
        new_step(of_keyword_only)(x=X)
