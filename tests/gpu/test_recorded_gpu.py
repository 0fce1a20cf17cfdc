"""Around recordings: batches of any layout, bad first batches, second shapes, interrupts."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from flodl.core import StepError
from flodl.engine import TrainStep
from flodl.engine.capture.recording import Recording, record
from flodl.engine.errors import NotCapturable
from flodl.engine.internals import body_of, controller_of
from flodl.engine.tiers import compiled_shapes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def new_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 4), nn.BatchNorm1d(4)]
    return nn.Sequential(*layers).cuda()


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    out = model(x)
    return nn.functional.mse_loss(out, y), {"first": x.flatten()[0]}


def new_step(tier: str = "captured", *, optimizer=torch.optim.Adam, **settings) -> TrainStep:
    model = new_model()
    return TrainStep(model, optimizer(model.parameters(), lr=1e-3), mse, tier=tier, **settings)


def batch(number: int, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator("cuda").manual_seed(number)
    make = partial(torch.randn, device="cuda", generator=source)
    return make(size, 16), make(size, 4)


def state(step: TrainStep) -> list[torch.Tensor]:
    return [value.clone() for value in body_of(step).model.state_dict().values()]


def assert_same(one: TrainStep, other: TrainStep) -> None:
    assert all(torch.equal(a, b) for a, b in zip(state(one), state(other), strict=True))


@pytest.mark.parametrize("kind", ["slice", "expand", "transposed"])
def test_a_batch_that_is_not_dense_is_captured_with_eagers_bits(kind) -> None:
    def lay(x):
        wide = torch.cat([x, x], dim=1)
        return {
            "slice": lambda: wide[:, :16],
            "expand": lambda: x[:1].expand(8, 16),
            "transposed": lambda: x.t().contiguous().t(),
        }[kind]()

    eager, captured = new_step("eager"), new_step()
    for number in range(40):
        x, y = batch(number)
        assert torch.equal(eager(lay(x), y), captured(lay(x), y))
    # Rows that are one row in memory cannot be written to; where their copy rounds differently, it is left.
    assert captured.tier == "captured" or kind == "expand", captured.report()
    assert_same(eager, captured)


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (partial(torch.optim.SGD, momentum=0.9), {}),
        (partial(torch.optim.SGD, momentum=0.9, foreach=True), {}),
        (torch.optim.NAdam, {}),
        (torch.optim.RMSprop, {}),
        (torch.optim.Adam, {"precision": "fp16"}),
    ],
)
@pytest.mark.parametrize("tier", ["eager", "captured"])
def test_a_first_batch_that_is_not_finite_leaves_no_trace(tier, optimizer, settings) -> None:
    plain = new_step(tier, optimizer=optimizer, **settings)
    poisoned = new_step(tier, optimizer=optimizer, **settings)
    x, y = batch(0)
    poisoned(x * torch.nan, y)
    for number in range(30):
        plain(*batch(number)), poisoned(*batch(number))
    assert torch.isfinite(torch.cat([value.flatten().float() for value in state(poisoned)])).all()
    if not settings:
        assert_same(plain, poisoned)


def test_a_bad_batch_under_replay_leaves_batch_norm_alone() -> None:
    step = new_step()
    for number in range(20):
        step(*batch(number))
    assert step.tier == "captured", step.report()
    before = state(step)
    x, y = batch(99)
    step(x * torch.nan, y)
    assert bool(step.skipped)
    assert all(torch.equal(a, b) for a, b in zip(before, state(step)))


def test_named_values_follow_every_replay_also_of_a_second_shape() -> None:
    step = new_step()
    for number in range(40):
        x, y = batch(number, 8 if number < 20 else 6)
        step(x, y)
        assert torch.equal(step.values["first"], x.flatten()[0]), number
    assert step.report().captures == 2


def test_a_tensor_on_the_cpu_in_the_batch_is_refused() -> None:
    model = new_model()

    def weighed(model, x, y, lengths):
        return nn.functional.mse_loss(model(x), y) * len(lengths)

    step = TrainStep(model, torch.optim.Adam(model.parameters()), weighed, tier="captured")
    for number in range(12):
        step(*batch(number), torch.arange(8))
    assert step.tier == "eager"
    assert "the batch holds a tensor on the CPU" in step.report().reason


def test_a_replay_that_was_interrupted_is_found_again() -> None:
    plain, step = new_step(), new_step()
    for number in range(12):
        plain(*batch(number)), step(*batch(number))
    assert step.tier == "captured", step.report()
    (recording,) = (recorded.recording for recorded in controller_of(step).runner.recorded.values())
    assert isinstance(recording, Recording)
    mailbox = recording.mailbox
    assert mailbox is not None

    def replay_and_be_interrupted() -> None:
        recording.graph.replay()
        raise KeyboardInterrupt

    def be_interrupted() -> None:
        raise KeyboardInterrupt

    plain(*batch(50))
    for interrupted in (replay_and_be_interrupted, be_interrupted):
        with pytest.raises(KeyboardInterrupt):
            mailbox.post(interrupted, batch(50))
    for number in range(60, 200):
        assert torch.equal(plain(*batch(number)), step(*batch(number))), number
    assert_same(plain, step)


def test_losses_that_are_held_keep_their_numbers_for_many_laps() -> None:
    eager, step = new_step("eager"), new_step()
    expected, held, places = [], [], set()
    for number in range(700):
        wanted, loss = eager(*batch(number)), step(*batch(number))
        places.add(loss.data_ptr())
        if number % 3 == 0:
            expected.append(wanted)
            held.append(loss if number % 2 else loss.detach())
        elif number % 3 == 1:
            # For the gradient of another number torch holds the loss, and Python no longer does.
            weight = torch.ones((), device="cuda", requires_grad=True)
            expected.append(wanted), held.append((loss * weight, weight))
    assert step.tier == "captured", step.report()
    # Those that were dropped are given again.
    assert len(places) < 650
    for wanted, kept in zip(expected, held):
        if isinstance(kept, tuple):
            kept[0].backward()
            kept = kept[1].grad
        assert torch.equal(wanted, kept)


@pytest.mark.parametrize("rows", [3, 513, 40_000])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_batches_of_any_size_are_handed_over_whole(count: int, rows: int) -> None:
    scale = nn.Parameter(torch.ones((), device="cuda"))
    model = nn.Module()
    model.scale = scale

    def seen(model: nn.Module, *parts: Tensor) -> Tensor:
        return model.scale * sum(part.double().mean() for part in parts).float()

    step = TrainStep(model, torch.optim.SGD([scale], lr=0.0), seen, tier="captured")
    generator = torch.Generator("cuda").manual_seed(0)
    for _ in range(20):
        parts = [torch.randn(rows, 33, device="cuda", generator=generator) for _ in range(count)]
        wanted = sum(part.double().mean() for part in parts).float()
        assert torch.equal(step(*parts), wanted)
    assert step.tier == "captured", step.report()


def test_a_state_of_the_optimizer_that_is_cleared_is_noticed_at_once() -> None:
    eager, step = new_step("eager"), new_step()
    for number in range(60):
        if number == 30:
            assert step.tier == "captured", step.report()
            body_of(eager).optimizer.state.clear(), body_of(step).optimizer.state.clear()
        assert torch.equal(eager(*batch(number)), step(*batch(number))), number
    assert step.tier == "captured", step.report()
    assert "the optimizer's state was cleared" in str(step.report())
    assert_same(eager, step)


@pytest.fixture
def look_often(monkeypatch) -> None:
    monkeypatch.setattr("flodl.engine.tiers.inspection.LOOK_EVERY", 32)
    monkeypatch.setattr("flodl.engine.tiers.inspection.LOOK_EVERY_S", 1e9)


def empty(optimizer, parameter) -> None:
    optimizer.state[parameter] = {}


def replace(optimizer, parameter) -> None:
    optimizer.state[parameter]["exp_avg"] = torch.zeros_like(parameter)


@pytest.mark.parametrize("change", [empty, replace])
def test_a_state_of_the_optimizer_that_is_replaced_is_seen_after_a_while(change, look_often) -> None:
    step = new_step()
    for number in range(20):
        step(*batch(number))
    assert step.tier == "captured", step.report()
    change(body_of(step).optimizer, body_of(step).parameters[0])
    for number in range(20, 90):
        step(*batch(number))
    assert "the state of the optimizer for '0.weight (" in str(step.report())
    assert step.tier == "captured", step.report()


def with_backbone() -> tuple[nn.Sequential, TrainStep]:
    """A frozen convolution that the optimizer does not hold, and a head that learns."""
    torch.manual_seed(0)
    backbone = nn.Conv2d(4, 8, 3).requires_grad_(False)
    model = nn.Sequential(backbone, nn.Flatten(), nn.Linear(8 * 36, 2)).cuda()
    optimizer = torch.optim.Adam(model[2].parameters())
    return model, TrainStep(model, optimizer, lambda m, x: m(x).square().mean(), tier="captured")


def images(number: int) -> torch.Tensor:
    return torch.randn(4, 4, 8, 8, device="cuda", generator=torch.Generator("cuda").manual_seed(number))


def lie_another_way(model: nn.Sequential) -> None:
    model[0].to(memory_format=torch.channels_last)


def give_other_memory(model: nn.Sequential) -> None:
    model[0].weight.data = model[0].weight.data.clone()


@pytest.mark.parametrize("change", [lie_another_way, give_other_memory])
def test_weights_outside_the_optimizer_that_move_are_seen_and_held_until_then(change, look_often) -> None:
    (model, step), (_, twin) = with_backbone(), with_backbone()
    for number in range(20):
        step(images(number)), twin(images(number))
    assert step.tier == twin.tier == "captured", step.report()
    change(model)
    # Whoever is given that memory next writes something else there.
    others = [torch.full((288,), torch.nan, device="cuda") for _ in range(50)]
    for number in range(20, 90):
        torch.testing.assert_close(step(images(number)), twin(images(number)), rtol=1e-3, atol=1e-3)
    assert "the parameter '0.weight' changed" in str(step.report())
    assert step.tier == "captured", step.report()
    assert all(torch.isnan(other).all() for other in others)


def test_a_hook_on_a_gradient_is_seen_after_a_while(look_often) -> None:
    step = new_step()
    for number in range(20):
        step(*batch(number))
    assert step.tier == "captured", step.report()
    body_of(step).parameters[-1].register_hook(torch.zeros_like)
    for number in range(20, 90):
        step(*batch(number))
    assert "the parameter '4.bias' changed" in str(step.report())
    assert step.tier == "captured", step.report()


def test_every_recording_holds_what_it_writes_to() -> None:
    step = new_step()
    for number in range(40):
        step(*batch(number, 8 if number < 20 else 6))
    runner = controller_of(step).runner
    assert step.report().captures == 2, step.report()
    assert runner.captures == len(runner.recorded)
    for held in (recorded.held for recorded in runner.recorded.values()):
        places = {tensor.data_ptr() for tensor in held}
        assert {p.data_ptr() for p in body_of(step).model.parameters()} <= places
        assert {s["exp_avg"].data_ptr() for s in body_of(step).optimizer.state.values()} <= places


def alternating(step: TrainStep, count: int) -> torch.Tensor:
    sizes = [8 if number < 8 or number % 2 else 16 for number in range(count)]
    return torch.stack([step(*batch(number, size)) for number, size in enumerate(sizes)])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.Adagrad], ids=["inside", "outside"])
def test_another_shape_is_captured_beside_a_compiled_step(optimizer, monkeypatch) -> None:
    monkeypatch.setitem(compiled_shapes.SEEN_BEFORE_COMPILING, "compiled", 100)
    eager, step = new_step("eager", optimizer=optimizer), new_step("compiled", optimizer=optimizer)
    losses = alternating(step, 60)
    torch.testing.assert_close(losses, alternating(eager, 60), rtol=1e-3, atol=1e-3)
    report = step.report()
    assert (report.tier, report.captures, report.compiles) == ("compiled", 2, 1), report
    assert "a batch of a different shape than the compiled one is replayed" in str(report)
    assert controller_of(step).other_shapes.captures == 1
    # A replay calls no Python, as a step that ran eagerly would.
    called: list[int] = []
    body_of(step).model.register_forward_hook(lambda *_: called.append(1))
    step(*batch(100, 16)), step(*batch(101, 8))
    assert not called


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.Adagrad], ids=["inside", "outside"])
def test_a_frequent_shape_is_compiled_too(optimizer) -> None:
    eager, step = new_step("eager", optimizer=optimizer), new_step("compiled", optimizer=optimizer)
    torch.testing.assert_close(alternating(step, 60), alternating(eager, 60), rtol=1e-3, atol=1e-3)
    report = step.report()
    assert (report.tier, report.captures, report.compiles) == ("compiled", 2, 2), report
    assert (controller_of(step).other_shapes.captures, controller_of(step).runner.captures) == (0, 2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_step_that_was_compiled_often_enough_is_captured(monkeypatch) -> None:
    monkeypatch.setattr("flodl.engine.tiers.controller.MAX_COMPILES", 1)
    step = new_step("compiled")
    for number in range(10):
        step(*batch(number))
    assert step.tier == "compiled", step.report()
    body_of(step).parameters[0].requires_grad_(False)
    for number in range(10, 30):
        step(*batch(number))
    assert (step.tier, step.report().compiles) == ("captured", 1), step.report()


def test_strict_finds_a_wait_in_the_update() -> None:
    step = new_step("eager", strict=True)
    for number in range(3):
        step(*batch(number))
    weight = body_of(step).parameters[0]

    def ask(*_) -> None:
        weight.sum().item()

    body_of(step).optimizer.register_step_pre_hook(ask)
    with pytest.raises(StepError, match="the host waited for the device"):
        step(*batch(3))
    assert torch.isfinite(torch.randn(3, device="cuda")).all()


@pytest.mark.parametrize("strict", [False, True])
def test_an_error_of_the_step_in_a_trial_reaches_the_user_and_the_step_is_captured_later(strict) -> None:
    failing = {"now": False}

    def fragile(model, x, y):
        if failing["now"]:
            raise ValueError("a bad batch")
        return mse(model, x, y)

    model = new_model()
    step = TrainStep(model, torch.optim.Adam(model.parameters()), fragile, tier="captured", strict=strict)
    for number in range(3):
        step(*batch(number))
    failing["now"] = True
    with pytest.raises(ValueError, match="a bad batch"):
        step(*batch(3))
    failing["now"] = False
    for number in range(12):
        step(*batch(number))
    assert step.tier == "captured", step.report()


def test_after_a_broken_recording_stream_and_memory_are_as_before() -> None:
    usual = torch.cuda.current_stream()

    def waits(x):
        torch.cuda.synchronize()
        return x * 2

    with pytest.raises(NotCapturable):
        record(waits, (torch.ones(4, device="cuda"),))
    assert torch.cuda.current_stream() == usual
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    side = torch.cuda.Stream()
    for _ in range(8):
        large = torch.ones(8 << 20, device="cuda")
        large.record_stream(side)
        del large
        torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 2 * (32 << 20)


NEWER_NAMES = """
import torch
from torch import nn
from flodl.engine import TrainStep
torch.backends.cuda.matmul.fp32_precision = "tf32"
torch.backends.cudnn.conv.fp32_precision = "ieee"
model = nn.Linear(16, 4).cuda()
for precision in ("fp32", "tf32"):
    step = TrainStep(model, torch.optim.Adam(model.parameters()), lambda m, x: m(x).square().mean(),
                     tier="captured", precision=precision)
    for _ in range(12):
        step(torch.randn(8, 16, device="cuda"))
    assert step.tier == "captured", step.report()
assert torch.backends.cuda.matmul.fp32_precision == "tf32"
"""


def test_torchs_newer_names_for_tf32_are_no_obstacle() -> None:
    done = subprocess.run([sys.executable, "-c", NEWER_NAMES], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def test_a_step_that_nobody_holds_but_itself_does_not_break_the_recording_of_another() -> None:
    """Python destroys it when it collects; within a recording CUDA does not allow that."""
    old = new_step()
    for number in range(20):
        old(*batch(number))
    assert old.tier == "captured", old.report()
    old.itself = old
    del old
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        step = new_step()
        for number in range(20):
            step(*batch(number))
    finally:
        gc.set_threshold(*thresholds)
    assert step.tier == "captured", step.report()


def test_a_trial_that_is_over_goes_without_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        step = new_step()
        for number in range(20):
            step(*batch(number))
        assert step.tier == "captured", step.report()
        recordings = [weakref.ref(found) for found in gc.get_objects() if type(found) is Recording]
        assert recordings
        del step
        assert not any(recording() for recording in recordings)
    finally:
        gc.enable()
