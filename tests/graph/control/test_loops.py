"""Loops: number of iterations, stopping, published values and gradients."""

import pytest
import torch
from torch import Tensor, nn

from flodl import FlowBuilder, LearnedHalt, ThresholdHalt
from flodl.core import LoopError

from ..nodes import Broken, Double, NoHostReads, Shift, double

ROWS = torch.tensor([[1.0, 2.0], [3.0, 4.0], [20.0, 1.0]])


def iterations_of(end, x: Tensor) -> int:
    """Count how often the body runs."""
    calls = []

    def body(state: Tensor) -> Tensor:
        calls.append(1)
        return state * 2

    end(FlowBuilder().loop_body(body)).build()(x)
    return len(calls)


@pytest.mark.parametrize(
    ("end", "iterations"),
    [
        (lambda loop: loop.for_n(4), 4),
        (lambda loop: loop.while_cond(lambda state: False, 6), 6),
        (lambda loop: loop.while_cond(lambda state: True, 6), 0),
        (lambda loop: loop.until_cond(lambda state: True, 6), 1),
        (lambda loop: loop.until_cond(lambda state: 0.0, 6), 6),
        (lambda loop: loop.until_cond(lambda state: state.amax() > 10, 6), 3),
        (lambda loop: loop.while_cond(lambda state: state.amax() - 10, 6), 3),
        (lambda loop: loop.while_cond(lambda state: (state.amax() - 10).reshape(1, 1), 6), 3),
    ],
)
def test_the_body_runs_the_expected_number_of_times(end, iterations):
    assert iterations_of(end, torch.tensor([[1.0, 2.0]])) == iterations


def test_an_until_loop_does_not_check_its_condition_after_the_last_iteration():
    asked = []

    def condition(state: Tensor) -> bool:
        asked.append(1)
        return False

    FlowBuilder().loop_body(double).until_cond(condition, 3).build()(ROWS)
    assert len(asked) == 2


def by_hand(rows: Tensor, stop_above: float, iterations: int, *, ask_first: bool) -> Tensor:
    """Double each row until its largest element exceeds the limit."""
    finished = []
    for row in rows:
        for iteration in range(iterations):
            if (ask_first or iteration > 0) and row.max() > stop_above:
                break
            row = row * 2
        finished.append(row)
    return torch.stack(finished)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("method", ["while_cond", "until_cond"])
@pytest.mark.parametrize("iterations", [1, 3, 9])
def test_one_value_per_sample_stops_samples_one_by_one(method, masked, iterations):
    halt = ThresholdHalt(10.0, per_sample=True)
    model = getattr(FlowBuilder().loop_body(Double()), method)(halt, iterations, masked=masked).build()
    assert torch.equal(model(ROWS), by_hand(ROWS, 10.0, iterations, ask_first=method == "while_cond"))


@pytest.mark.parametrize("method", ["while_cond", "until_cond"])
@pytest.mark.parametrize("halt", [ThresholdHalt(30.0), ThresholdHalt(30.0, per_sample=True)])
def test_masked_equals_unmasked_in_value_and_gradient(method, halt):
    results = []
    for masked in (False, True):
        torch.manual_seed(0)
        body = nn.Linear(2, 2)
        with torch.no_grad():
            body.weight.copy_(torch.tensor([[1.5, 0.1], [0.2, 1.4]]))
        model = getattr(FlowBuilder().loop_body(body), method)(halt, 8, masked=masked).build()
        stream = ROWS.clone().requires_grad_()
        output = model(stream)
        output.square().sum().backward()
        results.append((output.detach(), stream.grad, body.weight.grad, body.bias.grad))
    for unmasked, masked in zip(*results):
        torch.testing.assert_close(unmasked, masked)


def test_a_masked_loop_never_reads_a_value_on_the_host():
    halt = ThresholdHalt(10.0, per_sample=True)
    masked = FlowBuilder().loop_body(Double()).until_cond(halt, 9, masked=True).build()
    learned = FlowBuilder().loop_body(Double()).until_cond(LearnedHalt(2), 3).build()
    with NoHostReads():
        masked(ROWS), learned(ROWS)
    unmasked = FlowBuilder().loop_body(Double()).until_cond(halt, 9).build()
    with pytest.raises(AssertionError, match="read on the host"), NoHostReads():
        unmasked(ROWS)


@pytest.mark.parametrize("method", ["while_cond", "until_cond"])
@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_a_learned_halt_returns_the_expected_state(method, iterations):
    torch.manual_seed(0)
    halt, body = LearnedHalt(2).double(), nn.Linear(2, 2).double()
    rows = ROWS.double()
    model = getattr(FlowBuilder().loop_body(body), method)(halt, iterations).build()
    state, left, expected = rows, torch.ones(3, dtype=torch.float64), torch.zeros_like(rows)
    for iteration in range(iterations):
        if method == "while_cond" or iteration > 0:
            stop = torch.sigmoid(state @ halt.linear.weight[0] + halt.linear.bias[0])
            expected = expected + (left * stop)[:, None] * state
            left = left * (1 - stop)
        state = body(state)
    torch.testing.assert_close(model(rows), expected + left[:, None] * state)
    if model.traces("halt"):
        torch.testing.assert_close(sum(model.traces("halt")), torch.ones(3, dtype=torch.float64))


def test_a_learned_halt_receives_gradients():
    torch.manual_seed(0)
    halt = LearnedHalt(2)
    FlowBuilder().loop_body(nn.Linear(2, 2)).until_cond(halt, 3).build()(ROWS).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in halt.parameters())


def test_the_weights_of_a_learned_halt_can_enter_the_loss():
    halt = LearnedHalt(2)
    model = FlowBuilder().loop_body(Double()).until_cond(halt, 3).tag("refined").build()
    model(ROWS)
    weights = model.traces("refined.halt")
    assert [weight.shape for weight in weights] == [(3,)] * 3
    sum(iteration * weight.mean() for iteration, weight in enumerate(weights)).backward()
    assert halt.linear.weight.grad is not None


def test_a_learned_halt_works_for_a_single_vector_too():
    model = FlowBuilder().loop_body(Double()).until_cond(LearnedHalt(2), 3).build()
    assert model(torch.ones(2)).shape == (2,)
    assert model(torch.ones(3, 5, 2)).shape == (3, 5, 2)


def test_the_state_may_be_any_nesting_of_tensors():
    def body(state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"value": state["value"] * 2, "count": state["count"] + 1}

    def start(x: Tensor) -> dict[str, Tensor]:
        return {"value": x, "count": torch.zeros(len(x))}

    def large(state: dict[str, Tensor]) -> Tensor:
        return state["value"].amax(1) - 10

    fixed = FlowBuilder(start).loop_body(body).for_n(3).build()
    assert fixed(ROWS)["count"].tolist() == [3, 3, 3]
    for masked in (False, True):
        model = FlowBuilder(start).loop_body(body).while_cond(large, 9, masked=masked).build()
        result = model(ROWS)
        assert result["count"].tolist() == [3, 2, 0]
        assert torch.equal(result["value"], by_hand(ROWS, 10.0, 9, ask_first=True))


def test_a_learned_halt_weights_every_tensor_of_the_state():
    def body(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return state[0] * 2, state[1] + 1

    model = FlowBuilder(lambda x: (x, torch.zeros(3))).loop_body(body).until_cond(LearnedHalt(2), 2).build()
    value, count = model(ROWS)
    weights = torch.stack(model.traces("halt"))
    torch.testing.assert_close(count, weights[0] + 2 * weights[1])
    torch.testing.assert_close(value, (2 * weights[0] + 4 * weights[1])[:, None] * ROWS)


def test_gradients_flow_through_all_iterations():
    body = Shift(2, 0.5)
    stream = ROWS.clone().requires_grad_()
    (FlowBuilder().loop_body(body).for_n(5).build()(stream)).sum().backward()
    assert body.offset.grad.tolist() == [15.0, 15.0]
    assert stream.grad.tolist() == [[1.0, 1.0]] * 3


def test_an_empty_batch_passes_through_a_loop_with_per_sample_stopping():
    model = FlowBuilder().loop_body(Double()).while_cond(ThresholdHalt(1.0, per_sample=True), 4).build()
    assert model(torch.zeros(0, 2)).shape == (0, 2)


def test_a_body_with_a_reset_method_is_reset_before_each_call():
    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.iteration = 0

        def reset(self) -> None:
            self.iteration = 0

        def forward(self, x: Tensor) -> Tensor:
            self.iteration += 1
            return x + self.iteration

    model = FlowBuilder().loop_body(Body()).for_n(3).build()
    assert torch.equal(model(torch.zeros(1)), model(torch.zeros(1)))


def test_a_submodule_named_reset_is_not_called():
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reset = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.reset(x).sigmoid() * x

    assert FlowBuilder().loop_body(Cell()).for_n(2).build()(ROWS).shape == (3, 2)
    tagged = FlowBuilder(nn.Linear(2, 2)).tag("reset").build()
    assert FlowBuilder().loop_body(tagged).for_n(2).build()(ROWS).shape == (3, 2)


def test_an_error_in_the_body_names_the_iteration():
    def third(x: Tensor) -> Tensor:
        if x.item() == 4:
            raise ValueError("too large")
        return x * 2

    inner = FlowBuilder(third).label("inner").build()
    model = FlowBuilder().loop_body(inner).for_n(5).tag("loop").build()
    with pytest.raises(ValueError, match="too large") as caught:
        model(torch.ones(1))
    assert caught.value.__notes__ == ["flodl: at 'loop.body.third_1', given (1,), iteration 3 of 5"]


def test_an_error_in_the_condition_names_the_condition():
    with pytest.raises(ValueError, match="broken on purpose") as caught:
        FlowBuilder().loop_body(Double()).while_cond(Broken(), 2).build()(ROWS)
    assert caught.value.__notes__ == [f"flodl: at 'loop_1.condition', Broken(), given {tuple(ROWS.shape)}"]


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (lambda state: "stop", "the condition returned a str. Return a number"),
        (lambda state: torch.zeros(2), "the condition returned shape (2,) for a batch of 3"),
        (lambda state: torch.zeros(1, 3), "the condition returned shape (1, 3) for a batch of 3"),
    ],
)
def test_a_condition_of_the_wrong_type_is_rejected(condition, words):
    with pytest.raises(LoopError) as caught:
        FlowBuilder().loop_body(Double()).while_cond(condition, 2).tag("loop").build()(ROWS)
    assert words in str(caught.value)
    assert caught.value.path == "loop.condition"


def test_per_sample_stopping_needs_a_body_that_preserves_the_shape():
    halt = ThresholdHalt(10.0, per_sample=True)
    model = FlowBuilder().loop_body(lambda x: torch.cat([x, x], 1)).while_cond(halt, 2).build()
    with pytest.raises(
        LoopError, match=r"at 'loop_1.body': the body changes the state from shape \(3, 2\) to"
    ):
        model(ROWS)


def test_a_learned_halt_needs_a_floating_point_state_and_logits():
    model = FlowBuilder(lambda x: (x, x.long())).loop_body(lambda s: s).while_cond(LearnedHalt(2), 2).build()
    with pytest.raises(
        LoopError, match=r"at 'loop_1.body': a learned halt weights the states of all iterations"
    ):
        model(ROWS)
    counted = LearnedHalt(2)
    counted.forward = lambda state: torch.zeros(3, dtype=torch.long)
    with pytest.raises(LoopError, match=r"the learned halt returned torch.int64"):
        FlowBuilder().loop_body(Double()).while_cond(counted, 2).build()(ROWS)
    with pytest.raises(LoopError, match=r"LearnedHalt got in_features=0. Pass the width"):
        LearnedHalt(0)


@pytest.mark.parametrize(
    "condition",
    [lambda s: s.max() * torch.nan, lambda s: s[:, 0] * torch.nan, lambda s: float("nan")],
    ids=["batch", "per sample", "number"],
)
@pytest.mark.parametrize("method", ["while_cond", "until_cond"])
def test_a_condition_that_is_nan_is_an_error(condition, method):
    flow = getattr(FlowBuilder().loop_body(Double()), method)(condition, 3)
    with pytest.raises(
        LoopError, match=r"at 'loop_1.condition': the condition returned NaN before iteration 3"
    ):
        flow.build()(ROWS)


def test_a_long_loop_finds_a_nan_condition_before_its_last_iteration():
    model = FlowBuilder().loop_body(Double()).until_cond(lambda s: s.max() * torch.nan, 10**9).build()
    with pytest.raises(LoopError, match="NaN before iteration 64"):
        model(ROWS)


def test_a_finished_sample_may_have_any_condition():
    values = iter([torch.tensor([1.0, -1.0, -1.0]), torch.tensor([torch.nan, -1.0, -1.0])])
    model = FlowBuilder().loop_body(Double()).while_cond(lambda s: next(values), 2).build()
    assert torch.equal(model(ROWS), torch.tensor([[1.0], [4.0], [4.0]]) * ROWS)


def test_a_while_condition_that_is_true_at_once_is_explained_in_the_first_call(capsys):
    def small(state):
        return state.max() < 1e6

    model = FlowBuilder().loop_body(Double()).while_cond(small, 3).build()
    assert torch.equal(model(ROWS), ROWS)
    assert torch.equal(model(ROWS), ROWS)
    assert (
        capsys.readouterr().err.count("note: the condition small of while_cond is true before the first") == 1
    )
    FlowBuilder().loop_body(Double()).until_cond(small, 3).build()(ROWS)
    FlowBuilder().loop_body(Double()).while_cond(small, 3, masked=True).build()(ROWS)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("end", ["while_cond", "until_cond"])
def test_a_condition_without_a_limit_is_an_error_with_the_right_call(end):
    loop = FlowBuilder().loop_body(Double())
    with pytest.raises(LoopError, match=rf"{end} needs 'max_iter'. Write {end}\(cond, max_iter=10\)"):
        getattr(loop, end)(ThresholdHalt(1.0))
