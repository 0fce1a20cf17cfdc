"""Steps whose eager form waits for the device; capture and its copies of the batch are stand-ins on a CPU."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from flodl.engine import TrainStep
from flodl.engine.batch.tree import static_copy
from flodl.engine.compile.payload import pack_step
from flodl.engine.compile.runner import CompiledRunner
from flodl.engine.guards import recompile
from flodl.engine.internals import body_of
from flodl.engine.tiers import controller
from flodl.engine.verify import candidate, trial


class ReadsACopy(CompiledRunner):
    """Runs like a recording, on a copy of the batch, and refuses to recompile."""

    update_inside = False
    draws_on_host = False

    def __init__(self, body, **_) -> None:
        super().__init__(body)

    def learn(self, micro) -> None:
        super().learn(micro)
        self.run_without_update(micro)

    def run_without_update(self, micro):
        return super().run_without_update(replace(micro, batch=static_copy(micro.batch)))


@pytest.fixture
def rehearsed(quick_compiler, compiled_elsewhere, monkeypatch) -> None:
    """Rehearse and plan as on CUDA; captured runs from Python, and compiled on a copy of the batch."""
    mode: list[object] = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", mode.append)
    for module in (trial, candidate):
        monkeypatch.setattr(module, "can_record", lambda device: True)
    monkeypatch.setattr(candidate, "CompiledRunner", ReadsACopy)
    monkeypatch.setattr(controller, "plan_tiers", plan_as_on_cuda)


def plan_as_on_cuda(body):
    planned = {
        "auto": ["captured", "compiled"],
        "captured": ["captured"],
        "compiled": ["compiled"],
        "eager": [],
    }
    return planned[body.settings.tier], ""


@torch._dynamo.disable
def wait() -> None:
    """Warn like torch if the host waits for a device."""
    warnings.warn("called a synchronizing CUDA operation (Triggered internally.)", stacklevel=1)


def folded(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if not torch.compiler.is_compiling():
        wait()
    return model(x).square().mean()


def remaining(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    wait()
    return model(x).square().mean()


def trained(step_fn, *others, count=30, **settings) -> TrainStep:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), step_fn, **settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="called a synchronizing")
        for _ in range(count):
            step(torch.randn(8, 4), *others)
    return step


def reasons(step: TrainStep) -> list[str]:
    return [event.reason for event in step.report().events]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_host_sync_that_the_compiler_removes_does_not_rule_out_the_compiled_tier(
    rehearsed, paced, accumulate
) -> None:
    step = trained(folded, tier="compiled", accumulate=accumulate, count=30)
    assert step.tier == "compiled", step.report()
    found = "; the compiler removed a host sync: called a synchronizing CUDA operation at "
    assert found in step.report().reason
    assert "test_host_syncs.py" in step.report().reason
    torch.testing.assert_close(
        body_of(step).model.weight,
        body_of(trained(folded, tier="eager", accumulate=accumulate, count=30)).model.weight,
    )


def test_auto_compiles_what_cannot_be_captured_because_of_a_host_sync(rehearsed, monkeypatch) -> None:
    monkeypatch.setattr(controller.TierController, "keep_if_faster", lambda self, step: None)
    step = trained(folded)
    assert step.tier == "compiled", step.report()
    assert reasons(step)[0].startswith(
        "the step cannot be captured: called a synchronizing CUDA operation at "
    )


@pytest.mark.parametrize("tier", ["auto", "captured", "compiled"])
def test_a_host_sync_that_remains_is_refused_with_its_line(rehearsed, tier) -> None:
    step = trained(remaining, tier=tier)
    assert step.tier == "eager"
    found = " | ".join(reasons(step))
    for refused in {"auto": ["captured", "compiled"]}.get(tier, [tier]):
        assert f"the step cannot be {refused}: called a synchronizing CUDA operation at " in found
    assert step.report().compiles == (tier != "captured")


def weighed(model: nn.Module, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (model(x).square().mean(1) + weight).square().mean()


def with_negative_bit() -> torch.Tensor:
    return torch.randn(8, dtype=torch.complex64).conj().imag


def inferred() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(8)


BATCHES = {
    "expanded": lambda: torch.ones(1).expand(8),
    "negative": with_negative_bit,
    "inferred": inferred,
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_step_is_compiled_for_the_batch_as_a_recording_reads_it(rehearsed, kind) -> None:
    step = trained(weighed, BATCHES[kind](), tier="compiled", precision="bf16")
    assert step.tier == "compiled", step.report()
    assert step.report().compiles == 1


@pytest.mark.parametrize("kind", BATCHES)
def test_a_guard_that_fails_in_a_recording_is_compiled_for_once_more(rehearsed, monkeypatch, kind) -> None:
    told = []

    def as_recorded(micro):
        # Too early, as if nobody knew what a recording does to a batch.
        told.append(micro)
        return micro if len(told) == 1 else replace(micro, batch=static_copy(micro.batch))

    monkeypatch.setattr(candidate, "as_recorded", as_recorded)
    step = trained(weighed, BATCHES[kind](), tier="compiled")
    assert step.tier == "compiled", step.report()
    assert len(told) > 1


def test_a_guard_that_fails_again_is_named(rehearsed, monkeypatch) -> None:
    monkeypatch.setattr(candidate, "as_recorded", lambda micro: micro)
    step = trained(weighed, torch.ones(1).expand(8), tier="compiled")
    assert step.tier == "eager"
    reason = step.report().reason
    assert reason.startswith("the step cannot be compiled: the compiled code no longer fits (tensor 'weight'")
    assert "stride mismatch" in reason


def test_a_guard_that_fails_in_the_first_comparison_is_compiled_for_once_more(
    quick_compiler, monkeypatch
) -> None:
    failed = []

    class FailsOnce(CompiledRunner):
        def run_without_update(self, micro):
            if not failed:
                failed.append(micro)
                raise recompile.GuardFailed("the compiled code no longer fits (x == 1)")
            return super().run_without_update(micro)

    monkeypatch.setattr(candidate, "CompiledRunner", FailsOnce)
    step = trained(lambda model, x: model(x).square().mean(), tier="compiled")
    assert step.tier == "compiled", step.report()
    assert len(failed) == 1


def test_a_worker_compiles_for_the_batch_as_a_recording_reads_it(monkeypatch) -> None:
    step = trained(weighed, torch.ones(1).expand(8), tier="eager", count=1)
    body, told = body_of(step), []
    monkeypatch.setattr("flodl.engine.compile.payload.can_record", lambda device: True)
    monkeypatch.setattr("flodl.engine.compile.payload.as_recorded", told.append)
    pack_step(body, "a micro-batch")
    assert told == ["a micro-batch"]
