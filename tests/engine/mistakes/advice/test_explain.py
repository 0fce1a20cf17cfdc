"""Errors of torch in a step function say which function, which batch, and what to change."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flodl.core import StepError
from flodl.engine import TrainStep

X, Y, LABELS = torch.randn(8, 4), torch.randn(8, 3), torch.zeros(8, dtype=torch.long)


def new_step(step_fn, model: nn.Module | None = None, **settings) -> TrainStep:
    model = model or nn.Linear(4, 3)
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager", **settings)


def regression(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(x), y)


def classes(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def binary(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(model(x), y)


@pytest.mark.parametrize(
    ("step_fn", "batch", "message"),
    [
        (
            regression,
            (Y, X),
            r"cannot be multiplied.*regression\(model, x, y\) at test_explain.py:\d+.*order",
        ),
        (
            regression,
            (X[:, :2], Y),
            r"the batch is \(float32 \[8, 2\], float32 \[8, 3\]\). This Linear takes 4",
        ),
        (regression, (X.double(), Y), r"float32 parameters on cpu.*float64 \[8, 4\].*x.to\(torch.float32\)"),
        (regression, (X, Y[:, :2]), r"must match.*Check the order of the arguments and their shapes"),
        (regression, (X.to("meta"), Y.to("meta")), r"The model is on cpu, and the batch on meta. Move"),
        (regression, (X.numpy(), Y.numpy()), r"numpy float32 \[8, 4\].*torch.as_tensor"),
        (regression, (X.tolist(), Y), r"the batch is \(a list of 8, float32 \[8, 3\]\).*torch.as_tensor"),
        (classes, (X, LABELS.float()), r"float32 \[8\].*indices.*must be int64 \(torch.long\): y.long\(\)"),
        (classes, (X, LABELS[:, None]), r"int64 \[8, 1\].*y.squeeze\(1\)"),
        (
            lambda model, x, y: F.cross_entropy(model(x), y, weight=torch.ones(5)),
            (X, LABELS),
            r"The scores have 3 classes .*, and the weight of the loss has shape \[5\]\. .* \[3\]\.",
        ),
        (classes, (X, LABELS + 3), r"Target 3 is out of bounds.*less than the number of classes"),
        (
            classes,
            (torch.randn(8, 5, 4), torch.zeros(8, 5, dtype=torch.long)),
            r"Expected target size.*pass scores\.transpose\(1, 2\)",
        ),
        (
            lambda model, x, y: F.binary_cross_entropy(10 * model(x) + 2, y.sigmoid()),
            (X, Y),
            r"between 0 and 1.*use binary_cross_entropy_with_logits",
        ),
        (
            classes,
            (X, LABELS[:7]),
            r"batch_size \(8\) to match target batch_size \(7\), in the step function",
        ),
        (
            lambda model, x, y: F.binary_cross_entropy_with_logits(model(x)[:, :1], y),
            (X, torch.zeros(8)),
            r"Target size .* must be the same as .*the batch is .*y\.unsqueeze\(-1\)",
        ),
        (
            lambda model, x, y: F.binary_cross_entropy(model(x)[:, 0].sigmoid(), y),
            (X, torch.zeros(8, 1)),
            r"Using a target size .*y\.squeeze\(-1\)",
        ),
        (
            lambda model, x, y: F.multi_head_attention_forward(
                x, x, x, 8, 2, None, None, None, None, False, 0.0, model.weight, model.bias
            )[0].mean(),
            (X, Y),
            r"was expecting embedding dimension of 8, but got 4, in the step function .* their shapes",
        ),
        (binary, (X, Y.long()), r"or of binary_cross_entropy: y.float\(\)"),
        (
            classes,
            (LABELS, X),
            r"Check the order of the arguments, too: x is int64 \[8\] and y is float32 \[8, 4\]",
        ),
        (
            lambda model, x, y: F.cross_entropy(model(x.flatten(1)), y),
            (LABELS, X),
            r"Dimension out of range.*Check the order .* shapes: x is int64 \[8\] and y is float32",
        ),
        (
            lambda model, x, y: F.cross_entropy(F.conv2d(x, torch.zeros(3, 3, 1, 1)).mean((2, 3)), y),
            (torch.zeros(8, 3, 1, 1).long(), X),
            r"Check the order of the arguments, too: x is int64 \[8, 3, 1, 1\]",
        ),
        (
            lambda model, batch: model(batch).mean(),
            ({"x": X, "y": Y},),
            r"The batch is a dict: pass its parts to the model, as in model\(batch\['x'\]\) or model",
        ),
        (
            lambda model, batch: model(batch).mean(),
            ([X, Y],),
            r"A part of the batch contains several tensors: pass them to the model one by one",
        ),
    ],
)
def test_a_batch_that_does_not_fit_is_described(step_fn, batch, message: str, recwarn) -> None:
    step = new_step(step_fn)
    with pytest.raises(StepError, match=message) as raised:
        step(*batch)
    assert isinstance(raised.value, RuntimeError)
    assert raised.value.__cause__ is not None
    assert step.steps == 0


class Carries(nn.Module):
    """A cell that keeps its state from call to call, with its history."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 3)
        self.hidden = torch.zeros(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden = self.cell(x, self.hidden)
        return self.hidden


def test_a_state_that_is_carried_with_its_history_is_named() -> None:
    step = new_step(regression, nn.Sequential(Carries()))
    step(X, Y)
    with pytest.raises(StepError, match=r"'0.hidden' of the model keeps its autograd history.*detach\(\)"):
        step(X, Y)


def test_a_backward_in_the_step_function_is_explained() -> None:
    def twice(model, x, y):
        loss = regression(model, x, y)
        loss.backward()
        return loss

    with pytest.raises(StepError, match=r"second time, in .*calls backward\(\) itself: remove that call"):
        new_step(twice)(X, Y)


def test_an_in_place_operation_on_a_value_that_the_backward_needs_is_explained() -> None:
    def adding(model, x, y):
        hidden = torch.sigmoid(model(x))
        hidden += 1
        return hidden.mean()

    with pytest.raises(StepError, match=r"x \+= 1.*Write x = x \+ 1, or use a copy.*x\.clone\(\)") as raised:
        new_step(adding)(X, Y)
    assert "calls backward() itself" not in str(raised.value)
    assert "from one call to the next" not in str(raised.value)


def test_an_in_place_error_names_an_attribute_that_keeps_its_history() -> None:
    class Recurrent(nn.Linear):
        state = torch.zeros(8, 3)

        def forward(self, x):
            self.state = torch.sigmoid(super().forward(x))
            self.state += 1
            return self.state

    with pytest.raises(StepError, match=r"changed after it was used.*The attribute 'state' of the model"):
        new_step(regression, Recurrent(4, 3))(X, Y)


@pytest.mark.parametrize(
    "error",
    [ValueError("sizes must match"), RuntimeError("must match"), TypeError("same dtype"), KeyError("x")],
)
def test_an_error_that_the_step_function_raises_itself_stays_as_it_is(error: Exception) -> None:
    def broken(model, x, y):
        raise error

    with pytest.raises(type(error)) as raised:
        new_step(broken)(X, Y)
    assert raised.value is error
    assert not isinstance(error, StepError)
    assert not hasattr(error, "__notes__")


def test_an_error_of_torch_that_is_not_known_gets_a_note_about_the_batch() -> None:
    def unknown(model, x, y):
        return torch.linalg.cholesky(-torch.eye(3)).sum() + model(x).sum()

    with pytest.raises(RuntimeError) as raised:
        new_step(unknown)(X, Y)
    assert not isinstance(raised.value, StepError)


def test_an_error_in_the_update_is_not_blamed_on_the_batch() -> None:
    step = new_step(regression)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e39)
    step = TrainStep(model, optimizer, regression, tier="eager")
    with pytest.raises(RuntimeError) as raised:
        step(X, Y)
    assert not isinstance(raised.value, StepError)
    assert raised.value.__notes__ == ["In the update by SGD; its parameters are float32 on cpu."]


def test_a_failed_micro_batch_does_not_count_in_its_window() -> None:
    step = new_step(regression, accumulate=2)
    step(X, Y)
    with pytest.raises(StepError):
        step(Y, X)
    step(X, Y)
    assert (step.steps, step.updates) == (2, 1)


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def test_a_last_batch_of_one_sample_with_batch_norm_says_how_to_leave_it_out() -> None:
    step = new_step(regression, with_batch_norm())
    step(X, Y)
    with pytest.raises(
        StepError, match=r"This batch has 1 sample, .* drop_last=True\), or tail='drop'"
    ) as error:
        step(X[:1], Y[:1])
    assert error.value.path == "1"
    dropping = new_step(regression, with_batch_norm(), tail="drop")
    dropping(X, Y)
    dropping(X[:1], Y[:1])
    assert dropping.updates == 1


def test_one_value_per_channel_of_a_larger_model_is_explained() -> None:
    step = new_step(lambda model, x: model(x).mean(), nn.InstanceNorm1d(4, affine=True))
    with pytest.raises(StepError, match=r"The norm needs more than one value for each channel"):
        step(torch.zeros(8, 4, 1))


def test_an_unknown_value_error_or_assertion_of_torch_gets_a_note_about_the_batch() -> None:
    def invalid(model, x, y):
        return F.dropout(model(x), p=2.0).mean()

    def not_even(model, x, y):
        return nn.MultiheadAttention(7, 2)(x, x, x)[0].mean()

    for step_fn, kind in ((invalid, ValueError), (not_even, AssertionError)):
        with pytest.raises(kind) as raised:
            new_step(step_fn)(X, Y)
        assert "the batch is (float32 [8, 4], float32 [8, 3])" in raised.value.__notes__[0]


def test_an_assertion_of_the_user_stays_as_it_is() -> None:
    def checked(model, x, y):
        assert x.shape[1] == 7, "must be the same as before"

    with pytest.raises(AssertionError, match=r"^must be the same as before") as raised:
        new_step(checked)(X, Y)
    assert not getattr(raised.value, "__notes__", [])
