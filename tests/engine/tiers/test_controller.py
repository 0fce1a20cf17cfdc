"""Promotions and fallbacks between the tiers, with a compiler that only traces and guards."""

from __future__ import annotations

import copy
import functools
import pickle
from contextlib import contextmanager, nullcontext
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from flodl.core import StepError
from flodl.engine import TrainStep
from flodl.engine.batch.signature import signature
from flodl.engine.compile import policy as compilation
from flodl.engine.internals import body_of, controller_of
from flodl.engine.optimizer.prepare import Readiness
from flodl.engine.program import runner
from flodl.engine.tiers import controller
from flodl.engine.verify import failure, refusals, trial

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def model_with_everything() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 2))


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def new_step(step_fn=mse, *, make=small_model, **settings) -> TrainStep:
    model = make()
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), step_fn, **settings)


def run(step: TrainStep, count: int, *, size: int = 8) -> list[torch.Tensor]:
    return [step(torch.ones(size, 4), torch.zeros(size, 2)) for _ in range(count)]


def reasons(step: TrainStep) -> list[str]:
    return [f"{event.kind}: {event.reason}" for event in step.report().events]


def test_auto_on_a_cpu_says_when_it_will_compile() -> None:
    step = new_step()
    run(step, 12)
    assert step.tier == "eager"
    assert step.report().reason == "after 30 s of training, the step is compiled in another process"


def test_auto_stays_on_a_tier_that_is_faster_and_reports_the_gain(compiled_elsewhere, paced) -> None:
    step = new_step()
    paced(step, {"eager": 3.0, "compiled": 1.0})
    run(step, 20)
    report = step.report()
    assert report.tier == "compiled", report
    assert report.gain == 3.0
    assert report.compiles == 1
    assert report.promotion_cost_s > 0
    assert "gain      3.00× (3000.000 ms eager, 1000.000 ms now)" in str(report)
    assert "compiled once" in str(report)


def test_auto_goes_back_if_compiled_is_slower(compiled_elsewhere, paced) -> None:
    step = new_step()
    paced(step, {"eager": 1.0, "compiled": 2.0})
    run(step, 30)
    report = step.report()
    assert report.tier == "eager"
    assert report.reason == "compiled was measured slower: 2000.000 ms against 1000.000 ms"
    assert report.gain is None
    assert report.compiles == 1


def test_auto_does_not_compile_with_deterministic_algorithms(compiled_elsewhere) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        step = new_step()
        run(step, 12)
    finally:
        torch.use_deterministic_algorithms(False)
    assert step.tier == "eager"
    assert step.report().reason == (
        "compiling would change the rounding, and deterministic algorithms were requested"
    )


def test_a_failed_compilation_in_another_process_leaves_the_tier_unchanged(
    compiled_elsewhere, monkeypatch
) -> None:
    monkeypatch.setattr(compiled_elsewhere, "failure", "no compiler here")
    step = new_step()
    run(step, 12)
    assert (step.tier, step.report().reason) == ("eager", "not compiled: no compiler here")
    assert reasons(step) == ["eager: not compiled: no compiler here"]


def test_a_trial_leaves_no_trace(quick_compiler) -> None:
    """Weights, running statistics, momentum and random numbers are those of an eager step."""
    eager = new_step(make=model_with_everything, tier="eager")
    torch.manual_seed(1)
    losses = run(eager, 5)
    random_state = torch.get_rng_state()
    tried = new_step(make=model_with_everything, tier="compiled")
    torch.manual_seed(1)
    assert torch.equal(torch.stack(run(tried, 5)), torch.stack(losses))
    assert tried.tier == "compiled"
    assert torch.equal(torch.get_rng_state(), random_state)
    for name, value in body_of(eager).model.state_dict().items():
        assert torch.equal(value, body_of(tried).model.state_dict()[name]), name
    ours, theirs = (body_of(step).optimizer.state_dict()["state"] for step in (tried, eager))
    assert all(torch.equal(ours[k]["momentum_buffer"], theirs[k]["momentum_buffer"]) for k in theirs)
    assert tried.means() == eager.means()


class Reassigning(torch.optim.Optimizer):
    """Keeps its state in many places."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.calls = 0
        self.state["calls"] = 0
        self.history: list[torch.Tensor] = []

    @torch.no_grad()
    def step(self, closure=None) -> None:
        self.calls += 1
        self.state["calls"] += 1
        for group in self.param_groups:
            group["decay"] = group.get("decay", torch.ones(())) * 0.9
            for parameter in group["params"]:
                state = self.state[parameter]
                state["mean"] = 0.9 * state.get("mean", 0.0) + parameter.grad
                self.history = [*self.history, parameter.grad.clone()][-3:]
                weight = group["decay"] / (1 + self.calls) + 0.01 * self.state["calls"]
                parameter -= group["lr"] * weight * (state["mean"] + 0.1 * self.history[0].mean())


def test_an_optimizer_may_keep_its_state_anywhere(quick_compiler) -> None:
    hooked: list[str] = []
    ends = {}
    for tier in ("eager", "compiled"):
        model = small_model()
        optimizer = Reassigning(model.parameters())
        optimizer.register_step_post_hook(lambda *_, tier=tier: hooked.append(tier))
        step = TrainStep(model, optimizer, mse, tier=tier, clip_norm=0.5)
        run(step, 14)
        assert step.tier == tier, step.report()
        ends[tier] = [p.detach().clone() for p in model.parameters()]
    assert all(map(torch.equal, *ends.values()))
    assert hooked == ["eager"] * 14 + ["compiled"] * 14


def test_numpy_draws_the_same_random_numbers_as_in_eager(quick_compiler) -> None:
    @torch.compiler.disable
    def noise() -> float:
        return float(np.random.rand())

    drawn = {}
    for tier in ("eager", "compiled"):
        np.random.seed(0)
        step = new_step(lambda model, x, y: mse(model, x, y) * (1 + noise()), tier=tier)
        run(step, 14)
        drawn[tier] = np.random.rand()
    assert drawn["eager"] == drawn["compiled"]


def test_a_batch_that_is_not_finite_does_not_count_against_a_tier(quick_compiler) -> None:
    step = new_step(tier="compiled")
    run(step, 3)
    for _ in range(6):
        step(torch.full((8, 4), torch.nan), torch.zeros(8, 2))
    assert step.tier == "eager"
    run(step, 3)
    assert step.tier == "compiled", step.report()
    assert int(step.num_skipped) == 6


def test_a_model_without_finite_losses_stays_eager(quick_compiler, monkeypatch) -> None:
    monkeypatch.setattr(trial, "MAX_SKIPPED", 5)
    model = small_model()
    # A tier is tried only after an update that was applied.
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, tier="compiled")
    run(step, 3)
    for _ in range(8):
        step(torch.full((8, 4), torch.nan), torch.zeros(8, 2))
    assert step.report().reason == "the step cannot be compiled: 6 updates in a row were not finite"


@pytest.mark.slow
def test_a_function_that_many_steps_share_is_compiled_for_each_of_them(quick_compiler) -> None:
    graphs = []
    for _ in range(11):
        before = counters["stats"]["unique_graphs"]
        step = new_step(tier="compiled")
        run(step, 8)
        assert step.tier == "compiled", step.report()
        graphs.append(counters["stats"]["unique_graphs"] - before)
    assert min(graphs) > 0


def test_every_change_of_tier_is_an_event(quick_compiler) -> None:
    step = new_step(tier="compiled")
    run(step, 8)
    for learns in (False, True):
        body_of(step).model.bias.requires_grad_(learns)
        run(step, 8)
    assert [event.kind for event in step.report().events] == ["compiled", "eager"] * 2 + ["compiled"]


def test_a_lasting_new_batch_size_is_compiled(quick_compiler) -> None:
    step = new_step(tier="compiled")
    run(step, 8)
    run(step, 7, size=16)
    run(step, 1)
    run(step, 7, size=16)
    assert step.tier == "compiled"
    run(step, 6, size=16)
    assert any("batches have a different shape now" in reason for reason in reasons(step))
    assert step.tier == "compiled"
    large = torch.ones(16, 4), torch.zeros(16, 2)
    assert controller_of(step).runner.fits(runner.Micro(large, signature(large), runner.Phase.ONLY, 16))


def test_a_buffer_that_the_module_replaces_is_restored_after_a_trial(quick_compiler) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen = self.seen + 1
            return self.linear(x)

    model = Counting()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, tier="compiled")
    run(step, 10)
    assert step.tier == "compiled", step.report()
    assert model.seen == 10


def test_a_failed_guard_is_named_and_the_step_is_compiled_again(quick_compiler) -> None:
    weight = {"value": 1.0}

    def weighted(model, x, y):
        return mse(model, x, y) * weight["value"]

    step = new_step(weighted, tier="compiled")
    run(step, 6)
    assert step.tier == "compiled", step.report()
    weight["value"] = 0.0
    assert run(step, 1)[0] == 0
    assert (step.tier, step.report().compiles) == ("eager", 1)
    assert "['value'] == 1.0" in step.report().reason
    assert "mse(model, x, y) * weight" in step.report().reason
    assert step.report().reason.split("; ")[1] == "the step is prepared again"
    run(step, 6)
    assert (step.tier, step.report().compiles) == ("compiled", 2)


def weights(step: TrainStep) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in body_of(step).model.state_dict().items()}


def test_the_number_of_compilations_is_limited(quick_compiler, monkeypatch) -> None:
    monkeypatch.setattr(controller, "MAX_COMPILES", 2)
    weight = {"value": 1.0}

    def weighted(model, x, y):
        return mse(model, x, y) * weight["value"]

    step = new_step(weighted, tier="compiled")
    for _ in range(controller.MAX_COMPILES + 2):
        run(step, 7)
        weight["value"] += 1
    report = step.report()
    assert (report.tier, report.compiles) == ("eager", controller.MAX_COMPILES)
    assert report.reason.endswith("; it was compiled 2 times already and is not compiled again")
    assert torch.isfinite(torch.stack(run(step, 3))).all()


def test_a_step_that_needs_new_code_every_time_is_refused_and_training_continues(quick_compiler) -> None:
    calls = {"number": 0}

    def counting(model, x, y):
        calls["number"] += 1
        return mse(model, x, y) * calls["number"]

    step = new_step(counting, tier="compiled")
    run(step, 40)
    assert step.tier == "eager"
    assert step.report().reason.startswith("the compiled code no longer fits (")
    assert "['number'] ==" in step.report().reason
    assert step.report().reason.endswith("it was compiled 4 times already and is not compiled again")


@pytest.mark.parametrize("number", range(2, 8))
def test_a_number_that_changes_once_does_not_refuse_the_tier(quick_compiler, number: int) -> None:
    weight = {"of the loss": 1.0}
    step = new_step(lambda model, x, y: mse(model, x, y) * weight["of the loss"], tier="compiled")
    for place in range(16):
        weight["of the loss"] = 1.0 if place < number else 0.5
        run(step, 1)
    assert step.tier == "compiled", step.report()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: next(model.parameters()).requires_grad_(False), "a parameter was frozen or thawed"),
        (lambda model: model.eval(), "a module was switched between training and evaluation"),
    ],
)
def test_a_change_during_a_trial_postpones_it(quick_compiler, change, reason) -> None:
    step = new_step(tier="compiled")
    run(step, 4)
    assert "being compared" in step.report().reason
    change(body_of(step).model)
    run(step, 10)
    assert step.tier == "compiled", step.report()
    said = f"{reason} while the compiled step was being compared with eager; it is tried again later"
    assert said in [event.reason for event in step.report().events]


def test_a_model_that_changes_in_every_trial_stays_eager(quick_compiler) -> None:
    step = new_step(tier="compiled")
    for number in range(60):
        body_of(step).model.train(number % 2 == 0)
        run(step, 1)
    report = step.report()
    assert report.tier == "eager"
    assert report.compiles == controller.MAX_COMPILES
    assert report.reason.endswith("; it was compiled 4 times already and is not compiled again")


def test_compiled_code_that_differs_from_eager_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda *a, **k: doubled(function(*a, **k)))

    def doubled(given):
        return None if given is None else 2 * given

    step = new_step(tier="compiled")
    run(step, 8)
    assert step.tier == "eager"
    assert (
        step.report().reason
        == "the compiled step differs from eager: the gradients are off by 1 of their norm"
    )


def test_the_error_of_a_failed_compiler_is_quoted(monkeypatch) -> None:
    def fail(function, **_):
        def failing(*batch):
            raise RuntimeError("cannot be fused\nand a long story")

        return failing

    monkeypatch.setattr(torch, "compile", fail)
    step = new_step(tier="compiled")
    run(step, 8)
    report = step.report()
    assert report.reason == ("the step cannot be compiled: torch's compiler failed: cannot be fused")
    assert (report.compiles, report.promotion_cost_s > 0) == (1, True)
    assert " s to prepare, 0 recordings, compiled once" in str(report)


def test_training_continues_without_memory_for_a_trial(quick_compiler, monkeypatch) -> None:
    def too_large(*_):
        raise torch.OutOfMemoryError("a copy of everything does not fit")

    monkeypatch.setattr(trial, "Snapshot", too_large)
    step = new_step(tier="compiled")
    assert torch.isfinite(torch.stack(run(step, 8))).all()
    assert step.report().reason == "there is not enough memory to try a faster tier"
    assert step.report().updates == 8


def test_out_of_memory_in_a_trial_leaves_running_statistics_alone(quick_compiler, monkeypatch) -> None:
    def too_large(*_):
        raise torch.OutOfMemoryError("a copy of everything does not fit")

    monkeypatch.setattr(trial, "Snapshot", too_large)
    steps = [new_step(make=model_with_everything, tier=tier) for tier in ("eager", "compiled")]
    for step in steps:
        torch.manual_seed(1)
        run(step, 5)
    eager, tried = map(weights, steps)
    assert all(torch.equal(value, tried[name]) for name, value in eager.items())


@pytest.mark.parametrize("failing", ["Snapshot", "Trial.end_window"])
def test_a_failed_trial_ends_and_training_continues(quick_compiler, monkeypatch, failing) -> None:
    def fail(*_):
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr(f"flodl.engine.verify.trial.{failing}", fail)
    eager, step = (new_step(tier=tier, schedule=lambda k: 0.1 * 0.9**k) for tier in ("eager", "compiled"))
    assert torch.equal(torch.stack(run(step, 8)), torch.stack(run(eager, 8)))
    report = step.report()
    assert report.reason == "trying the compiled step failed: maximum recursion depth exceeded"
    assert (report.steps, report.updates, step.schedule.current_step) == (8, 8, 8)


def test_an_interrupt_during_a_comparison_does_not_skip_the_schedule(quick_compiler, monkeypatch) -> None:
    def interrupted(*_):
        raise KeyboardInterrupt

    step = new_step(tier="compiled", schedule=lambda k: 0.1 * 0.9**k)
    run(step, 3)
    with monkeypatch.context() as context:
        context.setattr(trial.Trial, "end_window", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(step, 1)
    assert (step.updates, step.schedule.current_step) == (4, 4)
    run(step, 4)
    assert (step.tier, step.schedule.current_step) == ("compiled", 8)


def test_gradients_stay_readable_after_a_refusal(monkeypatch) -> None:
    def doubled(given):
        return None if given is None else 2 * given

    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda *a, **k: doubled(function(*a, **k)))
    eager, step = new_step(tier="eager"), new_step(tier="compiled")
    run(eager, 4), run(step, 4)
    assert "differs from eager" in step.report().reason
    for ours, theirs in zip(body_of(step).parameters, body_of(eager).parameters):
        assert torch.equal(ours.grad, theirs.grad)


class RunsOut(torch.optim.SGD):
    """Runs out of memory before its second group, in one of its calls."""

    calls, fails_at = 0, 5

    @torch.no_grad()
    def step(self, closure=None) -> None:
        self.calls += 1
        for number, group in enumerate(self.param_groups):
            if number == 1 and self.calls == self.fails_at:
                raise torch.OutOfMemoryError("no room for the second group")
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"])


def test_an_update_that_ran_out_of_memory_during_a_trial_is_not_run_again(quick_compiler) -> None:
    model = small_model()
    optimizer = RunsOut([{"params": [model.weight]}, {"params": [model.bias]}], lr=0.1)
    step = TrainStep(model, optimizer, mse, tier="compiled")
    run(step, 4)
    assert "is being compared with eager" in step.report().reason
    with pytest.raises(torch.OutOfMemoryError, match="the second group"):
        run(step, 1)
    assert (optimizer.calls, step.updates) == (5, 4)
    assert step.report().reason == "there is not enough memory to try a faster tier"
    run(step, 1)
    assert (optimizer.calls, step.updates) == (6, 5)


@pytest.mark.parametrize("strict", [False, True])
def test_an_error_of_the_step_in_a_rehearsal_is_raised_unchanged(quick_compiler, monkeypatch, strict) -> None:
    """On CUDA a trial rehearses the step, and an error there refuses the tier."""
    watched, failing = trial.Trial.run_and_keep, {"now": False}

    def rehearsed(self, micro):
        try:
            return watched(self, micro)
        except failure.StepFailed as error:
            raise refusals.Refused(f"the step cannot be compiled: {error}") from error

    def fragile(model, x, y):
        if failing["now"]:
            raise ValueError("a bad batch")
        return mse(model, x, y)

    monkeypatch.setattr(trial.Trial, "run_and_keep", rehearsed)
    step = new_step(fragile, tier="compiled", strict=strict)
    run(step, 4)
    failing["now"] = True
    with pytest.raises(ValueError, match="a bad batch"):
        run(step, 1)
    failing["now"] = False
    run(step, 4)
    assert (step.tier, step.updates) == ("compiled", 8), step.report()


def test_an_error_of_the_step_in_a_trial_is_raised_without_a_wrapper(quick_compiler) -> None:
    failing = {"now": False}

    def fragile(model, x, y):
        if failing["now"]:
            raise ValueError("a bad batch")
        return mse(model, x, y)

    step = new_step(fragile, tier="compiled")
    run(step, 2)
    assert step.tier == "eager"
    failing["now"] = True
    with pytest.raises(ValueError, match="a bad batch") as error:
        run(step, 1)
    assert (error.value.__cause__, error.value.__context__) == (None, None)


def test_strict_checks_the_update_unless_the_host_reads_the_flag_itself(monkeypatch) -> None:
    watching: list[str] = []

    @contextmanager
    def no_waiting():
        watching.append("begun")
        yield
        watching.append("ended")

    monkeypatch.setattr(runner, "no_waiting", no_waiting)
    step = new_step(tier="eager", strict=True, accumulate=2)
    # As on a device, where the host reads the flag only before a first update.
    body_of(step).updater.host_reads_flag = False
    body_of(step).optimizer.register_step_pre_hook(lambda *_: watching.append("update"))
    run(step, 3)
    step.flush()
    alone, inside = ["begun", "ended"], ["begun", "update", "ended"]
    assert watching == [*alone, *alone, "update", *alone, *inside]


def test_an_error_in_the_step_function_during_a_trial_is_raised_and_changes_nothing(
    quick_compiler,
) -> None:
    failing = {"now": False}

    def fragile(model, x, y):
        if failing["now"]:
            raise ValueError("a bad batch")
        return mse(model, x, y)

    step = new_step(fragile, tier="compiled")
    run(step, 4)
    assert "is being compared with eager" in step.report().reason
    before, failing["now"] = weights(step), True
    with pytest.raises(ValueError, match="a bad batch"):
        run(step, 1)
    assert all(torch.equal(value, before[name]) for name, value in weights(step).items())
    failing["now"] = False
    run(step, 4)
    assert step.tier == "compiled", step.report()
    assert step.report().updates == 8


def test_a_flushed_window_does_not_end_a_trial(quick_compiler) -> None:
    step = new_step(tier="compiled", accumulate=2)
    run(step, 7)
    assert "is being compared with eager" in step.report().reason
    step.flush()
    assert "is being compared with eager" in step.report().reason
    run(step, 6)
    assert step.tier == "compiled", step.report()


def test_accumulation_in_compiled_code_follows_eager_with_ragged_windows(quick_compiler) -> None:
    def train(tier: str) -> tuple[torch.Tensor, TrainStep]:
        step = new_step(tier=tier, accumulate=2, clip_norm=0.5)
        losses = [*run(step, 12), *run(step, 1), *run(step, 1, size=3), *run(step, 1, size=3)]
        step.flush()
        return torch.stack([*losses, *run(step, 4)]), step

    eager, _ = train("eager")
    compiled, step = train("compiled")
    assert step.tier == "compiled", step.report()
    torch.testing.assert_close(compiled, eager)


def test_another_shape_runs_eagerly_next_to_compiled_code(quick_compiler) -> None:
    step = new_step(tier="compiled")
    run(step, 8)
    run(step, 2, size=3)
    run(step, 5, size=16)
    assert step.tier == "compiled"
    assert reasons(step)[1:] == [
        "eager: a ragged last batch runs eagerly",
        "eager: a batch of a different shape than the compiled one runs eagerly",
    ]


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda step: pickle.loads(pickle.dumps(step))], ids=["deepcopy", "pickle"]
)
def test_a_copy_of_a_compiled_step_continues_with_the_same_numbers(quick_compiler, copied) -> None:
    step = new_step(tier="compiled")
    run(step, 10)
    assert step.tier == "compiled"
    twin = copied(step)
    assert (twin.tier, twin.updates, twin.report().steps) == ("eager", 10, 10)
    torch.testing.assert_close(run(twin, 8), run(step, 8))
    assert twin.tier == "compiled", twin.report()


def test_a_step_that_was_closed_while_it_was_compiled_is_compiled_later(compiled_elsewhere, paced) -> None:
    step = new_step(tier="auto")
    paced(step, {"eager": 1.0, "compiled": 0.5})
    compiled_elsewhere.done = False
    try:
        run(step, 8)
        assert step.report().reason == "the step is being compiled in another process"
        step.close()
    finally:
        compiled_elsewhere.done = True
    run(step, 20)
    assert step.tier == "compiled", step.report()


def test_a_step_function_compiled_by_the_user_is_compiled_from_its_source(quick_compiler) -> None:
    step = new_step(torch.compile(mse), tier="compiled")
    run(step, 6)
    assert step.tier == "compiled", step.report()


class Pair:
    """A batch of a custom class."""

    def __init__(self) -> None:
        self.x, self.y = torch.ones(8, 4), torch.zeros(8, 2)


def test_an_opaque_object_in_the_batch_is_named(quick_compiler) -> None:
    step = new_step(lambda model, pair: mse(model, pair.x, pair.y), tier="compiled")
    for _ in range(8):
        step(Pair())
    assert step.report().reason == (
        "the step cannot be compiled: each batch contains a new object of class Pair, "
        "whose contents cannot be compared; pass its tensors in a tuple, list, dict or dataclass"
    )


def test_an_object_that_is_the_same_in_every_batch_is_accepted(quick_compiler) -> None:
    words = Pair()
    step = new_step(lambda model, x, y, words: mse(model, x, y), tier="compiled")
    for size in (8, 8, 8, 8, 12, 8, 12, 8, 8):
        step(torch.ones(size, 4), torch.zeros(size, 2), words)
    assert step.tier == "compiled", step.report()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("tier", ["eager", "compiled", "auto"])
def test_nested_tensors_of_either_layout_can_be_trained_on(quick_compiler, tier: str) -> None:
    for layout in (torch.strided, torch.jagged):
        step = new_step(lambda model, x: torch.cat(model(x).unbind()).square().mean(), tier=tier)
        for _ in range(8):
            parts = [torch.ones(3, 4), torch.ones(5, 4)]
            before = body_of(step).model.weight.detach().clone()
            step(torch.nested.nested_tensor(parts, layout=layout))
            assert not torch.equal(before, body_of(step).model.weight)


class Loss:
    """A step function that is an object."""

    def __call__(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mse(model, x, y)


class InPieces(nn.Module):
    """A model with a graph break."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step_fn", "make"),
    [
        (Loss(), small_model),
        (functools.partial(mse), small_model),
        (Loss().__call__, small_model),
        (mse, InPieces),
    ],
    ids=["object", "partial", "method", "in pieces"],
)
def test_many_models_are_compiled_in_one_process(quick_compiler, step_fn, make) -> None:
    for _ in range(10):
        step = new_step(step_fn, make=make, tier="compiled")
        run(step, 6)
        assert step.tier == "compiled", step.report()


@pytest.mark.parametrize("kind", ["Adam", "SGD"])
def test_an_update_whose_momentum_cycles_is_not_recorded(kind: str) -> None:
    model = small_model()
    settings = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **settings)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
    step = TrainStep(model, optimizer, mse, tier="compiled")
    controller_of(step).readiness = Readiness(True, "as on a device")
    for number in range(3):
        run(step, 1)
        schedule.step()
        assert controller_of(step).readiness.capturable is (number < 2)
    changing = "momentum" if kind == "SGD" else "betas"
    assert controller_of(step).readiness.reason == (
        f"its {changing} changes with every update, and a recording would keep it"
    )


def test_an_update_whose_settings_change_now_and_then_is_recorded(quick_compiler) -> None:
    step = new_step(tier="compiled")
    controller_of(step).readiness = Readiness(True, "as on a device")
    for momentum in (0.9, 0.8, 0.8, 0.7, 0.7):
        body_of(step).optimizer.param_groups[0]["momentum"] = momentum
        run(step, 1)
    assert controller_of(step).readiness.capturable


def test_switching_on_autocast_around_a_compiled_step_is_detected(quick_compiler) -> None:
    trained = []
    for tier in ("eager", "compiled"):
        step = new_step(tier=tier, make=model_with_everything)
        run(step, 8)
        assert step.tier == tier
        with torch.autocast("cpu", dtype=torch.bfloat16):
            run(step, 1)
        trained.append(step)
    assert trained[1].tier == "eager"
    assert "torch.autocast was switched on or off around the step" in trained[1].report().reason
    assert all(map(torch.equal, *(body_of(step).model.state_dict().values() for step in trained)))


def test_an_autocast_around_the_whole_loop_uses_the_current_weights() -> None:
    trained = []
    for whole in (True, False):
        step = new_step(tier="eager")
        casting = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16)
        with casting() if whole else nullcontext():
            for _ in range(3):
                with casting():
                    run(step, 1)
        trained.append(body_of(step).model)
    assert all(map(torch.equal, *(model.parameters() for model in trained)))


def test_captured_on_a_cpu_says_what_it_needs() -> None:
    step = new_step(tier="captured")
    run(step, 6)
    assert step.report().reason == "the model is on cpu, and capture needs CUDA"


def test_tuning_that_takes_too_long_is_stopped_and_reported(quick_compiler, monkeypatch) -> None:
    class TakesTooLong:
        failure = None
        tune = None
        layout = None
        findings: ClassVar[dict[str, object]] = {}

        def __init__(self, body, micro) -> None: ...

        def wait(self) -> None: ...

    monkeypatch.setattr(compilation, "BackgroundCompilation", TakesTooLong)
    step = new_step(tier="compiled", tune="gemm", tune_budget_s=0.5)
    run(step, 8)
    assert step.tier == "compiled"
    assert reasons(step)[0] == "tune: autotuning kernels took longer than 0.5 s and was stopped"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tune": "gem"}, "tune='gem'. Did you mean 'gemm'?"),
        ({"tune_budget_s": 0}, "tune_budget_s=0. Pass the number of seconds that tuning may take."),
        ({"tier": "compield"}, "tier='compield'. Did you mean 'compiled'?"),
        ({"guard": "los"}, "guard='los'. Did you mean 'loss'?"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(StepError) as error:
        new_step(**settings)
    assert message in str(error.value)
