"""Rules for every step schedule: purity, agreement of host and device, preview."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from flodl.core import ScheduleError
from flodl.optim import (
    CosineScheduler,
    CyclicLR,
    ExponentialLR,
    MultiStepLR,
    OneCycleLR,
    PlateauScheduler,
    Schedule,
    StepDecay,
    StepSchedule,
    WarmupScheduler,
)

EXAMPLES = [
    StepDecay(0.1, 7, 0.5),
    CosineScheduler(0.1, 0.0, 90),
    WarmupScheduler(CosineScheduler(0.1, 0.001, 90), 0.1, 10),
    WarmupScheduler(StepDecay(0.1, 7, 0.5), 0.1, 0),
    ExponentialLR(0.1, 0.97),
    MultiStepLR(0.1, [60, 30, 30], 0.1),
    OneCycleLR(0.01, 100),
    OneCycleLR.with_warmup_frac(0.01, 100, 1.0),
    CyclicLR(0.001, 0.01, 10),
    CyclicLR.asymmetric(0.0, 0.01, 3, 11),
]

rates = st.floats(1e-6, 10.0)
gammas = st.floats(0.5, 1.1)
counts = st.integers(1, 2_000)


def _cosine(high, share, total):
    return CosineScheduler(high, high * share, total)


def _cyclic(low, rise, up, down):
    return CyclicLR(low, low + rise, up, down)


plain = st.one_of(
    st.builds(StepDecay, rates, counts, gammas),
    st.builds(_cosine, rates, st.floats(0, 1), counts),
    st.builds(ExponentialLR, rates, gammas),
    st.builds(MultiStepLR, rates, st.lists(st.integers(0, 500), min_size=1, max_size=8), gammas),
    st.builds(OneCycleLR, rates, counts, st.floats(0, 1)),
    st.builds(_cyclic, rates, rates, counts, st.none() | counts),
)
schedules = plain | st.builds(WarmupScheduler, plain, rates, st.integers(0, 200))


@pytest.mark.parametrize("schedule", EXAMPLES, ids=repr)
def test_the_tensor_form_equals_the_host_form_at_every_step(schedule):
    steps = range(250)
    on_device = schedule.lr_tensor(torch.arange(250))
    assert on_device.dtype == torch.float64
    assert on_device.tolist() == pytest.approx([schedule.lr(step) for step in steps], rel=1e-12, abs=0)


@settings(max_examples=150, deadline=None)
@given(schedules, st.lists(st.integers(0, 1_000), min_size=1, max_size=20))
def test_the_tensor_form_equals_the_host_form_for_any_settings(schedule, steps):
    on_device = schedule.lr_tensor(torch.tensor(steps))
    assert on_device.tolist() == pytest.approx([schedule.lr(step) for step in steps], rel=1e-12, abs=0)


@settings(max_examples=100, deadline=None)
@given(schedules, st.integers(0, 1_000))
def test_a_schedule_is_a_pure_and_positive_function_of_the_step(schedule, step):
    first = schedule.lr(step)
    schedule.lr(step + 17)
    assert schedule.lr(step) == first
    assert 0 <= first < float("inf")


@pytest.mark.parametrize("schedule", EXAMPLES, ids=repr)
def test_a_step_may_be_a_single_number_on_the_device(schedule):
    result = schedule.lr_tensor(torch.tensor(42))
    assert result.shape == ()
    assert result.item() == pytest.approx(schedule.lr(42), rel=1e-12)


class _Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("schedule", EXAMPLES, ids=repr)
def test_the_tensor_form_reads_nothing_on_the_host(schedule):
    step = torch.tensor(42)
    with _Operations() as operations:
        schedule.lr_tensor(step)
    assert operations.names
    assert not [name for name in operations.names if "_local_scalar_dense" in name or "lift" in name]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("schedule", EXAMPLES, ids=repr)
def test_the_tensor_form_can_be_captured_and_replayed(schedule):
    step = torch.zeros((), dtype=torch.int64, device="cuda")
    schedule.lr_tensor(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        lr = schedule.lr_tensor(step)
        step += 1
    for expected in map(schedule.lr, range(120)):
        graph.replay()
        assert lr.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("schedule", EXAMPLES, ids=repr)
@pytest.mark.parametrize("step", [-1, 1.5, None])
def test_a_step_that_does_not_count_updates_is_rejected(schedule, step):
    message = rf"{type(schedule).__name__}: step={step!r}, expected an integer of at least 0\. Steps count"
    with pytest.raises(ScheduleError, match=message):
        schedule.lr(step)


def test_schedules_are_frozen_and_equal_by_value():
    assert StepDecay(0.1, 7, 0.5) == StepDecay(base=0.1, step_size=7, gamma=0.5)
    assert hash(MultiStepLR(0.1, [3, 1], 0.5)) == hash(MultiStepLR(0.1, (1, 3), 0.5))
    with pytest.raises(AttributeError):
        StepDecay(0.1, 7, 0.5).base = 1.0


def test_every_schedule_fits_the_protocol():
    for schedule in [*EXAMPLES, PlateauScheduler(0.1, 3, 0.5)]:
        assert isinstance(schedule, Schedule)


def test_a_custom_schedule_needs_only_the_two_forms():
    class Constant(StepSchedule):
        def lr(self, step):
            return 0.5

        def lr_tensor(self, step):
            return torch.full_like(step, 0.5, dtype=torch.float64)

    assert Constant().preview(3).startswith("███")


def test_the_schedule_mathematics_does_not_import_torch():
    program = """
import sys
import flodl.optim as optim
inner = optim.CosineScheduler(0.1, 0.001, 90)
optim.WarmupScheduler(inner, 0.1, 10).preview(100)
optim.PlateauScheduler(0.1, 3, 0.5).observe(1.0)
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_preview_shows_the_curve_and_its_first_highest_and_last_value():
    line, numbers = OneCycleLR(0.01, 100).preview(101, width=20).splitlines()
    assert len(line) == 20
    assert "█" in line[5:8]
    assert line[-1] == "▁"
    assert numbers == "step 0: 0.0004 · highest 0.01 at step 30 · step 100: 0.0004"


def test_a_preview_of_nothing_is_rejected():
    with pytest.raises(ScheduleError, match=r"StepDecay: total_steps=0, expected an integer of at least 1"):
        StepDecay(0.1, 7, 0.5).preview(0)
    with pytest.raises(ScheduleError, match=r"StepDecay: width=0"):
        StepDecay(0.1, 7, 0.5).preview(10, width=0)
