"""Every footgun of compiled steps that a CPU can show, one test each; the list is docs/footguns.md."""

from __future__ import annotations

import inspect
import itertools
import signal
import sys

import pytest
import torch
from torch import nn

from flodl.engine import TrainStep
from flodl.engine.internals import body_of
from flodl.engine.tiers import inspection

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


STEP_FILE = inspect.getsourcefile(TrainStep)


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def new_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))


def compiled(step_fn=mse, **settings) -> tuple[nn.Sequential, TrainStep]:
    """Return a model and its step, which six batches have compiled."""
    model = new_model()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="compiled", **settings)
    feed(step, 6)
    return model, step


def feed(step: TrainStep, count: int) -> list[torch.Tensor]:
    return [step(torch.ones(8, 4), torch.zeros(8, 2)) for _ in range(count)]


def test_a_counter_in_the_step_function_does_not_count_a_trial(quick_compiler) -> None:
    """A trial runs some windows again, and restores a counter of the step function."""
    calls: list[int] = []

    def counting(model, x, y):
        calls.append(1)
        return mse(model, x, y)

    _, step = compiled(counting)
    assert len(calls) == step.report().steps == 6


def test_a_hook_that_is_added_later_is_detected_after_a_while(quick_compiler, monkeypatch) -> None:
    """torch's compiler does not guard hooks."""
    monkeypatch.setattr(inspection, "LOOK_EVERY", 5)
    monkeypatch.setattr(inspection, "LOOK_EVERY_S", 1e9)
    model, step = compiled()
    assert step.tier == "compiled", step.report()
    calls: list[int] = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    feed(step, 1)
    assert calls == []
    feed(step, 5)
    seen = "the hook of '0' changed (noticed within 5 steps)"
    assert any(event.reason.startswith(seen) for event in step.report().events)
    assert calls


def test_slow_steps_are_inspected_more_often(quick_compiler, compiled_elsewhere, paced) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse)
    paced(step, {"eager": 1.0, "compiled": 0.3})
    feed(step, 15)
    assert (step.tier, step.report().step_s) == ("compiled", pytest.approx(0.3))
    model[1] = nn.GELU()
    feed(step, 1)
    assert step.report().events[-1].reason.startswith("the module '1' changed")


@pytest.mark.parametrize(
    ("change", "guard"),
    [
        (lambda model: model.eval(), "a module was switched between training and evaluation; "),
        (lambda model: setattr(model[1], "p", 0.0), "p == 0.5"),
        (lambda model: model[0].requires_grad_(False), "a parameter was frozen or thawed; "),
    ],
    ids=["eval", "attribute", "freeze"],
)
def test_a_change_to_what_compiled_code_depends_on_is_named(quick_compiler, change, guard: str) -> None:
    model, step = compiled()
    assert step.tier == "compiled", step.report()
    change(model)
    feed(step, 1)
    assert step.tier == "eager"
    assert guard in step.report().reason


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's compiler
def test_a_guard_that_fails_halfway_leaves_nothing_of_the_first_half(quick_compiler) -> None:
    weight = {"value": 1.0}

    def cut_in_two(model, x, y):
        out = model(x)
        torch._dynamo.graph_break()
        return nn.functional.mse_loss(out, y) * weight["value"]

    def train(tier: str) -> tuple[torch.Tensor, nn.Module, str]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
        step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), cut_in_two, tier=tier)
        weight["value"] = 1.0
        feed(step, 6)
        reached = step.tier if step.tier == "compiled" else step.report().reason
        weight["value"] = 2.0
        return torch.stack(feed(step, 1)), model, reached

    eager, plain, _ = train("eager")
    compiled, model, reached = train("compiled")
    assert reached == "compiled", reached
    torch.testing.assert_close(compiled, eager)
    torch.testing.assert_close(plain[1].running_var, model[1].running_var)


def test_a_replaced_parameter_is_used_and_as_in_torch_not_trained(quick_compiler) -> None:
    model, step = compiled()
    model[2].weight = nn.Parameter(torch.zeros(2, 4))
    model[2].bias.data.zero_()
    assert feed(step, 1)[0] == 0
    assert not model[2].weight.any()


def test_a_learning_rate_that_is_assigned_is_used_at_once(quick_compiler) -> None:
    model, step = compiled()
    body_of(step).optimizer.param_groups[0]["lr"] = 0.0
    before = [p.detach().clone() for p in model.parameters()]
    feed(step, 2)
    assert step.tier == "compiled"
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


@pytest.mark.parametrize("settings", [{}, {"precision": "fp16"}, {"clip_norm": 1e-3}], ids=str)
def test_a_group_that_is_added_later_is_unscaled_and_clipped_like_the_others(settings: dict) -> None:
    model = new_model()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    step = TrainStep(model, optimizer, lambda m, x, y: mse(m, x, y).float(), tier="eager", **settings)
    feed(step, 2)
    before = model[2].weight.detach().clone()
    optimizer.add_param_group({"params": list(model[2].parameters())})
    feed(step, 1)
    moved = (model[2].weight - before).abs().max()
    assert 0 < moved < (1e-4 if "clip_norm" in settings else 1)


def test_a_failed_micro_batch_does_not_count_in_its_window() -> None:
    """A batch that raised an error must not count in the mean over its window."""

    def fragile(model, x, y):
        if torch.isnan(x).any():
            raise ValueError("a bad batch")
        return mse(model, x, y)

    def train(spoil: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), fragile, accumulate=2)
        step(torch.ones(8, 4), torch.zeros(8, 2))
        if spoil:
            with pytest.raises(ValueError, match="a bad batch"):
                step(torch.full((8, 4), torch.nan), torch.zeros(8, 2))
        step(torch.ones(8, 4), torch.zeros(8, 2))
        assert step.updates == 1
        return model.weight.detach()

    assert torch.equal(train(spoil=True), train(spoil=False))


def test_a_batch_that_is_changed_after_the_call_does_no_harm(quick_compiler) -> None:
    def train(tier: str) -> torch.Tensor:
        model = nn.Linear(4, 2)
        nn.init.ones_(model.weight)
        nn.init.zeros_(model.bias)
        step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), mse, tier=tier)
        x, losses = torch.empty(8, 4), []
        for number in range(10):
            x.fill_(number / 10)
            losses.append(step(x, torch.zeros(8, 2)))
            x.fill_(torch.nan)
        return torch.stack(losses)

    torch.testing.assert_close(train("compiled"), train("eager"))


def test_one_buffer_for_all_micro_batches_does_no_harm(quick_compiler) -> None:
    """A trial repeats a window at its end, when such a buffer contains only the last batch."""
    model = new_model()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, tier="compiled", accumulate=2)
    x = torch.empty(8, 4)
    for number in range(12):
        step(x.fill_(number % 2 + 1), torch.zeros(8, 2))
    assert step.report().reason == "gradients within 0.001 of eager's over 2 updates"


def test_converting_the_model_to_another_dtype_raises_torchs_own_error(quick_compiler) -> None:
    model, step = compiled()
    model.double()
    with pytest.raises(RuntimeError, match="dtype"):
        feed(step, 1)
    model.float()
    assert torch.isfinite(torch.stack(feed(step, 3))).all()


@pytest.mark.parametrize("tier", ["auto", "compiled"])
def test_a_batch_that_requires_gradients_stays_eager_and_gets_the_same_gradients(
    quick_compiler, tier
) -> None:
    def gradients_of(tier) -> list[float]:
        torch.manual_seed(0)
        outer, inner = nn.Linear(4, 4), nn.Linear(4, 2)
        optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
        step = TrainStep(inner, optimizer, lambda m, x, y: (m(x) - y).square().mean(), tier=tier)
        norms = []
        for _ in range(9):
            outer.zero_grad()
            step(outer(torch.randn(8, 4)), torch.randn(8, 2))
            norms.append(float(outer.weight.grad.norm()))
        if tier == "compiled":
            assert "its batch was computed with gradients" in step.report().reason
        return norms

    assert gradients_of(tier) == gradients_of("eager")


def test_loading_an_earlier_state_does_not_stop_the_inspections(quick_compiler, monkeypatch) -> None:
    monkeypatch.setattr("flodl.engine.tiers.inspection.LOOK_EVERY", 20)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = TrainStep(model, optimizer, lambda m, x: m(x).square().mean(), tier="compiled")
    x, seen = torch.randn(8, 4), []
    for _ in range(3):
        step(x)
    early = step.state_dict()
    for _ in range(100):
        step(x)
    assert step.tier == "compiled", step.report()
    step.load_state_dict(early)
    model.register_forward_hook(lambda *_: seen.append(1))
    for _ in range(25):
        step(x)
    assert seen


def interrupt_and_continue(calls: int, accumulate: int, line: int) -> bool:
    """Press Ctrl+C after these calls, before this line of `step.py` runs; then continue training.

    Return whether the step ran that many lines.
    """
    model = nn.Linear(2, 1)
    nn.init.zeros_(model.weight)
    rates: list[int] = []
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        lambda model, x: model(x).mean(),
        tier="eager",
        accumulate=accumulate,
        schedule=lambda update: rates.append(update) or 1.0,
    )
    x, lines_left = torch.ones(4, 2), line
    for _ in range(calls):
        step(x)

    def trace(frame, event, argument):
        nonlocal lines_left
        if frame.f_code.co_filename != STEP_FILE:
            return None
        if event == "line":
            lines_left -= 1
            if lines_left == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    is_interrupted, before = False, sys.gettrace()
    sys.settrace(trace)
    try:
        step(x)
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        sys.settrace(before)
    assert is_interrupted is (lines_left <= 0)
    while step.steps < 12:
        step(x)
    assert step.is_between_updates
    # Each update moves the weight by one; a window that was given up may be missing.
    assert -model.weight[0, 0].item() == step.updates
    assert step.updates >= 12 // accumulate - (accumulate > 1)
    assert max(rates) == step.updates
    return is_interrupted


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("calls", [3, 4])
def test_weights_and_counts_agree_wherever_an_interrupt_arrives(calls: int, accumulate: int) -> None:
    lines = next(line for line in itertools.count(1) if not interrupt_and_continue(calls, accumulate, line))
    assert lines > 30
