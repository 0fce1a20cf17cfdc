"""`TrainStep` on any device does what a hand-written loop does, bit for bit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from flodl.core import StepError
from flodl.engine import TrainStep
from flodl.graph import FlowBuilder
from flodl.optim import CosineScheduler


def model_and_data(num: int = 12, size: int = 8, dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 2))
    data = [(torch.randn(size, 4, dtype=dtype), torch.randn(size, 2, dtype=dtype)) for _ in range(num)]
    return model.to(dtype), data


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def test_it_equals_a_hand_written_loop_with_clipping_and_a_schedule() -> None:
    schedule = CosineScheduler(1e-2, 1e-4, 12)
    model, data = model_and_data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    by_hand = []
    for number, (x, y) in enumerate(data):
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr(number)
        optimizer.zero_grad()
        loss = mse(model, x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        by_hand.append(loss.detach())
    weights = [p.detach().clone() for p in model.parameters()]

    model, data = model_and_data()
    step = TrainStep(
        model, torch.optim.AdamW(model.parameters(), lr=1e-2), mse, clip_norm=0.1, schedule=schedule
    )
    losses = [step(x, y) for x, y in data]
    assert torch.equal(torch.stack(losses), torch.stack(by_hand))
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters()))


@pytest.mark.parametrize("cut", [(8, 8, 8), (4, 10, 10), (6, 6, 12)], ids=str)
def test_accumulation_equals_one_large_batch_however_it_is_split(cut: tuple[int, ...]) -> None:
    def train(pieces: tuple[int, ...]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2).double()
        step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, accumulate=len(pieces))
        for _ in range(3):
            x, y = torch.randn(24, 4).double(), torch.randn(24, 2).double()
            for piece in zip(x.split(pieces), y.split(pieces)):
                step(*piece)
        return [p.detach() for p in model.parameters()]

    for ours, whole in zip(train(cut), train((24,))):
        torch.testing.assert_close(ours, whole, rtol=1e-12, atol=1e-14)


def test_flush_applies_a_window_that_is_not_full() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    twin = nn.Linear(4, 2).double()
    twin.load_state_dict(model.state_dict())
    x, y = torch.randn(16, 4).double(), torch.randn(16, 2).double()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, accumulate=4)
    step(x[:8], y[:8])
    step(x[8:], y[8:])
    before = model.weight.clone()
    step.flush()
    assert not torch.equal(before, model.weight)
    TrainStep(twin, torch.optim.SGD(twin.parameters(), lr=0.1), mse)(x, y)
    torch.testing.assert_close(model.weight, twin.weight, rtol=1e-12, atol=1e-14)
    step.flush()
    assert step.report().updates == 1


def test_a_batch_that_is_not_finite_changes_nothing() -> None:
    model, data = model_and_data(2)
    model.eval()
    step = TrainStep(model, torch.optim.Adam(model.parameters()), mse)
    step(*data[0])
    weights = [p.detach().clone() for p in model.parameters()]
    x, y = data[1]
    loss = step(x.fill_(torch.nan), y)
    assert torch.isnan(loss)
    assert bool(step.skipped)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters()))


@pytest.mark.parametrize("guard", ["loss", "gradients"])
def test_guard_gradients_skips_an_update_with_a_gradient_that_is_not_finite(guard: str) -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda m, x: m(x).abs().sqrt().sum(),  # finite at zero, its slope is not
        guard=guard,
    )
    assert step(torch.ones(1, 1)) == 0
    assert bool(step.skipped) == (guard == "gradients")
    assert step.num_skipped == (guard == "gradients")
    assert bool(torch.isfinite(model.weight).all()) == (guard == "gradients")


@pytest.mark.parametrize(
    "settings", [{}, {"clip_value": 1.0}, {"clip_norm": 1.0}, {"accumulate": 2}], ids=str
)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad])
def test_by_default_a_gradient_that_is_not_finite_never_reaches_the_weights(kind, settings) -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = kind(model.parameters(), lr=0.1)
    step = TrainStep(model, optimizer, lambda m, x: m(x).abs().sqrt().sum(), **settings)
    for _ in range(4):
        step(torch.ones(1, 2))
    before = model.weight.detach().clone()
    state = [value.clone() for value in optimizer.state[model.weight].values() if value is not None]
    for _ in range(2):
        assert step(torch.zeros(1, 2)) == 0
    assert step.num_skipped == (1 if "accumulate" in settings else 2)
    assert torch.equal(model.weight, before)
    after = [value for value in optimizer.state[model.weight].values() if value is not None]
    assert all(map(torch.equal, state, after))


def test_a_padded_tail_updates_like_its_real_rows() -> None:
    def masked(model, x, y, *, mask):
        errors = (model(x) - y).square().mean(1)
        return (errors * mask).sum() / mask.sum()

    torch.manual_seed(0)
    model, twin = nn.Linear(4, 2), nn.Linear(4, 2)
    twin.load_state_dict(model.state_dict())
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    padding = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), masked, tail="pad")
    plain = TrainStep(twin, torch.optim.SGD(twin.parameters(), lr=0.1), mse)
    for batch in ((x, y), (x[:3], y[:3])):
        torch.testing.assert_close(padding(*batch), plain(*batch))
    torch.testing.assert_close(model.weight, twin.weight)


def test_named_values_stay_valid_after_the_next_step() -> None:
    model, data = model_and_data(2)
    step = TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x, y: (mse(m, x, y), {"first": x[0, 0]})
    )
    step(*data[0])
    first = step.values["first"]
    step(*data[1])
    assert first == data[0][0][0, 0]
    assert step.values["first"] == data[1][0][0, 0]


def test_the_report_names_the_tier_and_the_reason() -> None:
    model, data = model_and_data(1)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse)
    step(*data[0])
    report = step.report()
    assert report.tier == step.tier == "eager"
    assert report.reason == ("after 30 s of training, the step is compiled in another process")
    assert report.to_dict()["steps"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "fp23"}, "precision='fp23'. Did you mean 'fp32'?"),
        ({"clip_norm": 0}, "clip_norm=0. Pass a limit above zero, or None for no clipping."),
        ({"accumulate": 0}, "accumulate=0. Pass an integer of at least 1."),
        ({"tail": "pad"}, "the step function has no 'mask' parameter"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused(settings: dict, message: str) -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(StepError) as error:
        TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, **settings)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("step_fn", "message"),
    [
        (lambda m, x, y: m(x), "the step function returned shape (8, 2). Return one scalar loss"),
        (lambda m, x, y: 3.0, "the step function returned a float. Return one scalar loss"),
        (lambda m, x, y: SimpleNamespace(loss=m(x).mean()), "It has one: return its .loss."),
        (lambda m, x, y: (mse(m, x, y), 3), "is an int. Return (loss, {name: value})."),
        (lambda m, x, y: mse(m, x, y).detach(), "the loss has no gradient."),
    ],
)
def test_a_wrong_step_function_is_refused(step_fn, message: str) -> None:
    model, data = model_and_data(1)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn)
    with pytest.raises(StepError) as error:
        step(*data[0])
    assert message in str(error.value)


def test_out_of_memory_splits_the_batch_and_keeps_the_update() -> None:
    def hungry(model, x, y):
        if len(x) > 3:
            raise torch.OutOfMemoryError("a stand-in for a small device")
        return nn.functional.mse_loss(model(x), y), {"mean": x.mean()}

    def train(step_fn) -> tuple[torch.Tensor, TrainStep]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2).double()
        step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn)
        for _ in range(3):
            step(torch.randn(10, 4).double(), torch.randn(10, 2).double())
        return model.weight.detach(), step

    whole, whole_step = train(lambda m, x, y: (mse(m, x, y), {"mean": x.mean()}))
    cut, step = train(hungry)
    torch.testing.assert_close(cut, whole, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(step.values["mean"], whole_step.values["mean"])
    assert [event.kind for event in step.report().events] == ["split", "split"]
    said = step.report().events[-1].reason
    assert "4 pieces" in said
    assert "if the loss is a mean over the samples" in said


def test_out_of_memory_on_a_single_sample_is_raised() -> None:
    def starving(model, x, y):
        raise torch.OutOfMemoryError("no room at all")

    model = nn.Linear(4, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), starving)
    with pytest.raises(torch.OutOfMemoryError, match="no room at all"):
        step(torch.randn(4, 4), torch.randn(4, 2))


def test_a_graph_that_carries_values_trains_step_after_step() -> None:
    from flodl import FlowBuilder
    from flodl.nn import StateAdd

    model = (
        FlowBuilder(nn.Linear(4, 4))
        .through(StateAdd())
        .using("memory")
        .tag("memory")
        .through(nn.Linear(4, 2))
        .build()
    )
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse)
    losses = [step(torch.ones(8, 4), torch.zeros(8, 2)) for _ in range(3)]
    assert torch.isfinite(torch.stack(losses)).all()
    assert not model.tagged("memory").requires_grad


def test_a_batch_that_is_not_finite_stays_out_of_the_running_statistics() -> None:
    model, data = model_and_data(2)
    step = TrainStep(model, torch.optim.Adam(model.parameters()), mse)
    step(*data[0])
    mean = model[1].running_mean.clone()
    step(data[1][0].fill_(torch.nan), data[1][1])
    assert torch.equal(mean, model[1].running_mean)
    assert step.report().skipped == 1
    assert "1 of them skipped" in str(step.report())


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (lambda m: (m, mse, torch.optim.SGD(m.parameters(), lr=0.1)), "the optimizer is a function."),
        (
            lambda m: (m, torch.optim.SGD, mse),
            "the optimizer is the class SGD. Create one: torch.optim.SGD(m",
        ),
        (
            lambda m: (nn.Linear, torch.optim.SGD(m.parameters(), lr=0.1), mse),
            "the model is the class Linear. Create one: Linear(…)",
        ),
        (lambda m: (m, torch.optim.LBFGS(m.parameters()), mse), "LBFGS evaluates the model several times"),
        (lambda m: (mse, torch.optim.SGD(m.parameters(), lr=0.1), mse), "the model is a function."),
        (
            lambda m: (FlowBuilder(m), torch.optim.SGD(m.parameters(), lr=0.1), mse),
            "the model is a FlowBuilder. Write TrainStep(builder.build(), optimizer, step_fn).",
        ),
    ],
)
def test_wrong_arguments_are_refused(parts, message: str) -> None:
    with pytest.raises(StepError) as error:
        TrainStep(*parts(nn.Linear(4, 2)))
    assert message in str(error.value)


@pytest.mark.parametrize("value", ["text", None, [1, 2]])
def test_a_named_value_that_is_not_a_number_is_refused_by_name(value) -> None:
    model = nn.Linear(2, 1)
    step = TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: (m(x).sum(), {"right": value})
    )
    with pytest.raises(StepError, match="returned 'right' as"):
        step(torch.ones(3, 2))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_first_update_of_a_new_group_has_the_scheduled_rate(accumulate: int) -> None:
    body, head = nn.Linear(4, 4), nn.Linear(4, 2)
    model = nn.Sequential(body, head)
    optimizer = torch.optim.SGD(body.parameters(), lr=1.0)
    rates: list[list[float]] = []
    step = TrainStep(
        model, optimizer, mse, schedule=lambda number: 0.5**number, accumulate=accumulate, tier="eager"
    )
    optimizer.register_step_pre_hook(
        lambda *_: rates.append([float(group["lr"]) for group in optimizer.param_groups])
    )
    x, y = torch.ones(3, 4), torch.ones(3, 2)
    for number in range(4):
        if number == 2:
            optimizer.add_param_group({"params": list(head.parameters()), "lr": 0.1})
        for _ in range(accumulate):
            step(x, y)
    assert rates == [[1.0], [0.5], pytest.approx([0.25, 0.025]), pytest.approx([0.125, 0.0125])]


def test_a_group_added_in_the_middle_of_a_window_has_the_scheduled_rate_when_it_is_flushed() -> None:
    body, head = nn.Linear(4, 4), nn.Linear(4, 2)
    optimizer = torch.optim.SGD(body.parameters(), lr=1.0)
    step = TrainStep(nn.Sequential(body, head), optimizer, mse, schedule=lambda number: 0.25, accumulate=2)
    step(torch.ones(3, 4), torch.ones(3, 2))
    optimizer.add_param_group({"params": list(head.parameters()), "lr": 1.0})
    seen: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(optimizer.param_groups[1]["lr"]))
    step.flush()
    assert seen == [0.25]


@pytest.mark.parametrize(
    "call",
    [
        lambda step, x, y: step.call(x, y),
        lambda step, x, y: step.call(x, y, samples=4),
        lambda step, x, y: step.call((x, y)),
        lambda step, x, y: step.call((x, y), 4),
        lambda step, x, y: step.call(samples=4),
        lambda step, x, y: step.flush(1),
        lambda step, x, y: step.reset_means("loss"),
        lambda step, x, y: step.load_state_dict(),
    ],
)
def test_a_method_that_gets_the_wrong_arguments_says_what_to_write(call) -> None:
    model = nn.Linear(3, 1)
    step = TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x, y: (m(x) - y).square().mean()
    )
    with pytest.raises(StepError, match=r"step\.\w+ .*Write step\.\w+\("):
        call(step, torch.zeros(4, 3), torch.zeros(4, 1))
    assert step.steps == 0


def test_a_type_error_of_the_step_function_is_not_taken_for_a_wrong_call() -> None:
    model = nn.Linear(3, 1)

    def loss_of(m, x, y):
        raise TypeError("my own")

    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of)
    with pytest.raises(Exception, match="my own"):
        step.call((torch.zeros(4, 3), torch.zeros(4, 1)), samples=2)
