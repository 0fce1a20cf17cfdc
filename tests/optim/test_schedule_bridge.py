import copy
import json
import math
import pickle
import re

import pytest
import torch

from flodl.core import ScheduleError
from flodl.optim import (
    CosineScheduler,
    CyclicLR,
    ExponentialLR,
    PlateauScheduler,
    StepDecay,
    WarmupScheduler,
    apply,
)


def _parameter():
    return torch.nn.Parameter(torch.zeros(2))


def _optimizer(*rates, kind=torch.optim.SGD):
    return kind([{"params": [_parameter()], "lr": rate} for rate in rates])


def _rates(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


class _Ramp:
    def lr(self, step):
        return 0.1 * step


@pytest.mark.parametrize(
    "schedule",
    [lambda o: torch.optim.lr_scheduler.StepLR(o, 1), lambda o: o.param_groups[0]["lr"] / 2],
)
def test_a_function_of_the_optimizer_is_not_a_schedule(schedule):
    with pytest.raises(ScheduleError, match=r"called with step 0: .*It does not take an optimizer") as caught:
        apply(schedule, _optimizer(1.0))
    assert isinstance(caught.value.__cause__, (TypeError, AttributeError))


def test_other_errors_of_a_schedule_are_those_of_the_user():
    with pytest.raises(ZeroDivisionError):
        apply(lambda step: 1.0 / step, _optimizer(1.0))


def test_the_rate_of_step_zero_is_set_at_once_and_each_step_sets_the_next():
    optimizer = _optimizer(1.0)
    bridge = apply(_Ramp(), optimizer)
    seen = [bridge.lr]
    for _ in range(2):
        bridge.step()
        seen.append(bridge.lr)
    assert seen == pytest.approx([0.0, 0.1, 0.2])
    assert _rates(optimizer) == pytest.approx([0.2])
    assert bridge.current_step == 2


def test_a_scale_multiplies_the_schedule_and_is_replaced_not_multiplied():
    optimizer = _optimizer(1.0)
    bridge = apply(_Ramp(), optimizer)
    bridge.scale(5.0)
    bridge.scale(2.5)
    bridge.step()
    assert bridge.lr == pytest.approx(0.25)
    assert bridge.lr_scale == 2.5
    bridge.scale(1.0)
    assert _rates(optimizer) == pytest.approx([0.1])


def test_a_plain_function_of_the_step_is_a_schedule():
    optimizer = _optimizer(1.0)
    bridge = apply(lambda step: 1 / (step + 1), optimizer)
    bridge.step()
    assert _rates(optimizer) == [0.5]


def test_groups_keep_their_ratio_to_the_highest_rate():
    optimizer = _optimizer(0.01, 0.001, 0.05, 0.0)
    bridge = apply(ExponentialLR(0.2, 0.5), optimizer)
    assert _rates(optimizer) == pytest.approx([0.04, 0.004, 0.2, 0.0])
    bridge.step()
    assert _rates(optimizer) == pytest.approx([0.02, 0.002, 0.1, 0.0])
    assert bridge.ratios == pytest.approx((0.2, 0.02, 1.0, 0.0))


@pytest.mark.parametrize(
    "schedule",
    [
        CosineScheduler(0.01, 0.0, 100),
        CyclicLR(0.01, 0.02, 10),
        WarmupScheduler(CosineScheduler(0.01, 0.0, 90), 0.01, 1),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
def test_a_schedule_sets_the_group_whose_rate_is_its_base(schedule):
    optimizer = _optimizer(0.001, 0.01, 0.1)
    apply(schedule, optimizer)
    assert _rates(optimizer) == pytest.approx([0.001, 0.01, 0.1])


def test_the_ratio_survives_a_rate_of_zero():
    optimizer = _optimizer(0.01, 0.001)
    bridge = apply(_Ramp(), optimizer)
    assert _rates(optimizer) == [0.0, 0.0]
    bridge.step()
    assert _rates(optimizer) == pytest.approx([0.1, 0.01])


def test_the_ratio_of_a_group_added_later_is_relative_to_the_first_rate():
    optimizer = _optimizer(0.01, 0.001)
    bridge = apply(ExponentialLR(0.2, 0.5), optimizer)
    optimizer.add_param_group({"params": [_parameter()], "lr": 0.005})
    bridge.step()
    assert _rates(optimizer) == pytest.approx([0.1, 0.01, 0.05])


def test_a_rate_that_is_a_tensor_is_filled_in_place():
    rates = [torch.tensor(0.01), torch.tensor(0.001)]
    optimizer = _optimizer(*rates, kind=lambda groups: torch.optim.Adam(groups, foreach=False))
    bridge = apply(ExponentialLR(0.2, 0.5), optimizer)
    bridge.step()
    for group, rate, expected in zip(optimizer.param_groups, rates, (0.1, 0.01)):
        assert group["lr"] is rate
        assert float(rate) == pytest.approx(expected)


@pytest.mark.parametrize(
    "kind",
    [
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.RAdam,
        torch.optim.NAdam,
    ],
)
def test_any_torch_optimizer_trains_with_it(kind):
    weight = _parameter()
    optimizer = kind([weight], lr=1.0)
    bridge = apply(StepDecay(0.1, 1, 0.5), optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        (weight - 1).square().sum().backward()
        optimizer.step()
        bridge.step()
    assert weight.detach().abs().min() > 0
    assert _rates(optimizer) == pytest.approx([0.0125])


def test_the_rates_are_those_of_a_hand_written_loop():
    start = torch.randn(3)
    by_bridge, by_hand = (torch.nn.Parameter(start.clone()) for _ in range(2))
    schedule = WarmupScheduler(CosineScheduler(0.1, 0.001, 10), 0.1, 3)
    driven, plain = torch.optim.Adam([by_bridge], lr=1.0), torch.optim.Adam([by_hand], lr=1.0)
    bridge = apply(schedule, driven)
    for step in range(12):
        plain.param_groups[0]["lr"] = schedule.lr(step)
        for weight, optimizer in ((by_bridge, driven), (by_hand, plain)):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
        bridge.step()
    assert torch.equal(by_bridge, by_hand)


def test_a_position_can_be_set():
    optimizer = _optimizer(1.0)
    bridge = apply(_Ramp(), optimizer)
    bridge.set_step(7)
    assert _rates(optimizer) == pytest.approx([0.7])
    bridge.step()
    assert bridge.lr == pytest.approx(0.8)


def test_a_plateau_follows_its_metric():
    optimizer = _optimizer(1.0, 0.5)
    bridge = apply(PlateauScheduler(0.1, 1, 0.5), optimizer)
    bridge.observe(1.0)
    bridge.step()
    assert _rates(optimizer) == pytest.approx([0.1, 0.05])
    bridge.observe(torch.tensor(2.0))
    assert _rates(optimizer) == pytest.approx([0.05, 0.025])


@pytest.mark.parametrize("wrapped", [lambda plateau: plateau, lambda one: WarmupScheduler(one, 0.1, 2)])
def test_two_bridges_that_share_a_plateau_cannot_both_observe(wrapped):
    plateau = PlateauScheduler(0.1, 2, 0.5)
    first, second = (apply(wrapped(plateau), _optimizer(0.1)) for _ in range(2))
    for bridge in (first, second, first):
        bridge.observe(1.0)
    before = plateau.state_dict()
    with pytest.raises(ScheduleError, match="Create one PlateauScheduler for each optimizer"):
        second.observe(1.0)
    assert plateau.state_dict() == before
    first.observe(1.0)


def test_a_later_bridge_may_continue_with_the_plateau_of_an_earlier_one():
    plateau = PlateauScheduler(0.1, 2, 0.5)
    for _ in range(3):
        bridge = apply(plateau, _optimizer(0.1))
        bridge.observe(1.0)
    assert bridge.lr == 0.05


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda bridge: pickle.loads(pickle.dumps(bridge))])
def test_a_copied_bridge_has_its_own_plateau(copied):
    bridge = apply(PlateauScheduler(0.1, 2, 0.5), _optimizer(0.1))
    bridge.observe(1.0)
    other = copied(bridge)
    for one in (bridge, other):
        one.observe(1.0)
        one.observe(1.0)
    assert (bridge.lr, other.lr) == (0.05, 0.05)


def test_a_plateau_that_was_reset_or_loaded_may_be_used_by_another_bridge():
    plateau = PlateauScheduler(0.1, 2, 0.5)
    first, second = (apply(plateau, _optimizer(0.1)) for _ in range(2))
    for bridge in (first, second) * 2:
        bridge.observe(1.0)
        plateau.reset()
    for bridge in (first, second) * 2:
        bridge.load_state_dict(bridge.state_dict())
        bridge.observe(1.0)


def test_a_plateau_inside_a_warm_up_follows_its_metric():
    bridge = apply(WarmupScheduler(PlateauScheduler(0.1, 1, 0.5), 0.1, 2), _optimizer(1.0))
    bridge.set_step(5)
    for metric in (1.0, 2.0):
        bridge.observe(metric)
    assert bridge.lr == pytest.approx(0.05)
    assert bridge.state_dict()["schedule"]["lr"] == pytest.approx(0.05)


@pytest.mark.parametrize("make", [_Ramp, lambda: PlateauScheduler(0.1, 1, 0.5)])
def test_a_resumed_bridge_continues_as_if_never_stopped(make):
    optimizer = _optimizer(0.01, 0.001)
    schedule = make()
    bridge = apply(schedule, optimizer)
    for _ in range(3):
        bridge.step()
    bridge.scale(2.0)
    if isinstance(schedule, PlateauScheduler):
        bridge.observe(1.0)
        bridge.observe(2.0)
    saved = json.loads(json.dumps(bridge.state_dict()))

    fresh = _optimizer(0.01, 0.001)
    resumed = apply(make(), fresh)
    fresh.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(saved)
    assert _rates(fresh) == _rates(optimizer)
    bridge.step()
    resumed.step()
    assert _rates(fresh) == _rates(optimizer)
    assert resumed.state_dict() == bridge.state_dict()


def test_groups_without_any_rate_are_rejected():
    message = (
        r"highest lr of the parameter groups is 0\.0, and the other groups keep their ratio .* Build the"
    )
    with pytest.raises(ScheduleError, match=message):
        apply(_Ramp(), _optimizer(0.0, 0.0))


@pytest.mark.parametrize("wrong", [0.1, None, CosineScheduler])
def test_what_is_not_a_schedule_is_rejected(wrong):
    with pytest.raises(
        ScheduleError, match=r"is not a schedule\. Pass an object with a method lr\(step\), such as"
    ):
        apply(wrong, _optimizer(1.0))


def test_what_is_not_an_optimizer_is_rejected():
    with pytest.raises(
        ScheduleError, match=r"Linear has no parameter groups with an 'lr' to set\. Pass a torch"
    ):
        apply(_Ramp(), torch.nn.Linear(2, 2))


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf")])
def test_a_rate_that_cannot_be_used_is_rejected_with_its_step_and_changes_nothing(rate):
    optimizer = _optimizer(1.0)
    bridge = apply(lambda step: 0.5 if step < 1 else rate, optimizer)
    with pytest.raises(
        ScheduleError,
        match=rf"returned the learning rate {rate} at step 1\. A learning rate must be finite",
    ):
        bridge.step()
    assert bridge.current_step == 0
    assert _rates(optimizer) == [0.5]


def test_a_scale_or_a_step_out_of_range_is_rejected():
    bridge = apply(_Ramp(), _optimizer(1.0))
    with pytest.raises(
        ScheduleError, match=r"scale: factor=-1, expected a finite number at least 0\. 1\.0 leaves"
    ):
        bridge.scale(-1)
    with pytest.raises(ScheduleError, match=r"set_step: step=-3, expected an integer of at least 0\. Steps"):
        bridge.set_step(-3)


def test_a_metric_for_a_schedule_of_the_step_is_rejected():
    with pytest.raises(
        ScheduleError, match=r"StepDecay depends only on the step .* Use PlateauScheduler to follow"
    ):
        apply(StepDecay(0.1, 1, 0.5), _optimizer(1.0)).observe(1.0)


def test_a_state_for_other_groups_is_rejected():
    state = apply(_Ramp(), _optimizer(1.0, 0.1)).state_dict()
    with pytest.raises(
        ScheduleError, match=r"the state has 2 parameter groups and the optimizer has 1\. Build"
    ):
        apply(_Ramp(), _optimizer(1.0)).load_state_dict(state)
    with pytest.raises(
        ScheduleError, match=r"the state has no 'lr_scale', 'reference_lr', 'ratios', only \['step'\]"
    ):
        apply(_Ramp(), _optimizer(1.0)).load_state_dict({"step": 1})


def test_removed_groups_are_rejected():
    optimizer = _optimizer(1.0, 0.1)
    bridge = apply(_Ramp(), optimizer)
    optimizer.param_groups.pop(0)
    with pytest.raises(
        ScheduleError, match=r"has 1 parameter groups but had 2 before, .* Build a new optimizer"
    ):
        bridge.step()


def test_a_new_group_can_get_the_rate_of_the_next_update_at_once():
    optimizer = _optimizer(1.0)
    bridge = apply(StepDecay(1.0, 1, 0.5), optimizer)
    bridge.step()
    bridge.scale(0.5)
    optimizer.add_param_group({"params": [_parameter()], "lr": 0.1})
    bridge.add_new_groups()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.25, 0.025])
    optimizer.param_groups[0]["lr"] = 7.0
    bridge.add_new_groups()
    assert optimizer.param_groups[0]["lr"] == 7.0


@pytest.mark.parametrize("rate", [1e39, math.inf, -math.inf, math.nan, -1e-3])
@pytest.mark.parametrize("at", [0, 3])
def test_a_rate_that_torch_cannot_use_raises(rate: float, at: int) -> None:
    optimizer = _optimizer(0.1)
    with pytest.raises(ScheduleError, match=f"learning rate {re.escape(str(rate))} at step {at}"):  # noqa: PT012
        bridge = apply(lambda step: rate if step == at else 0.1, optimizer)
        for _ in range(at):
            bridge.step()


def test_a_scale_that_makes_the_rate_too_large_raises() -> None:
    bridge = apply(lambda step: 0.5, _optimizer(0.1))
    with pytest.raises(ScheduleError, match=r"learning rate 0.5 at step 0, times 1e\+300"):
        bridge.scale(1e300)


@pytest.mark.parametrize(
    ("first", "lr", "warns"),
    [
        (1.0, 0.1, True),
        (1.0, 1e-3, True),
        (2.0, 0.1, True),
        (1.0, 1.0, False),
        (1.0, 0.5, False),
        (0.5, 1e-3, False),
    ],
)
def test_a_schedule_that_seems_to_return_factors_is_a_warning(first, lr, warns, capsys) -> None:
    bridge = apply(lambda step: first * 0.95**step, _optimizer(lr))
    for _ in range(3):
        bridge.step()
    told = capsys.readouterr().err
    assert ("returns learning rates, not factors" in told) == warns
    if warns:
        expected = f"returns {first:g} at step 0, which replaces the learning rate {lr:g}"
        assert told.count("\n") == 1
        assert expected in told


def test_a_rate_that_something_else_sets_is_a_warning_once(capsys) -> None:
    optimizer = _optimizer(0.1)
    bridge = apply(lambda step: 0.1 / (step + 1), optimizer)
    for _ in range(3):
        bridge.step()
    assert capsys.readouterr().err == ""
    for _ in range(3):
        optimizer.param_groups[0]["lr"] = 0.001
        bridge.step()
    told = capsys.readouterr().err
    assert told.count("a learning rate was set to 0.001 outside the schedule, which had set it to 0.025") == 1


def test_loading_a_state_scaling_and_new_groups_are_not_taken_for_another_schedule(capsys) -> None:
    optimizer = _optimizer(0.1)
    bridge = apply(lambda step: 0.1 / (step + 1), optimizer)
    bridge.step()
    saved = optimizer.state_dict(), bridge.state_dict()
    bridge.step()
    optimizer.load_state_dict(saved[0])
    bridge.load_state_dict(saved[1])
    bridge.step()
    bridge.scale(0.5)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.01})
    bridge.add_new_groups()
    bridge.step()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("as_class", [True, False])
def test_a_scheduler_of_torch_is_rejected_with_the_schedule_to_use(as_class):
    optimizer, kind = _optimizer(0.1), torch.optim.lr_scheduler.CosineAnnealingLR
    message = r"CosineAnnealingLR is a torch scheduler.* Use flodl.optim.CosineScheduler .* on_step_end"
    with pytest.raises(ScheduleError, match=message):
        apply(kind if as_class else kind(optimizer, 9), optimizer)


def test_a_schedule_and_an_optimizer_in_the_wrong_order_are_an_error():
    with pytest.raises(ScheduleError, match=r"apply got SGD, an optimizer, .* apply\(schedule, optimizer\)"):
        apply(_optimizer(0.1), lambda step: 0.1)


@pytest.mark.parametrize(
    ("rates", "schedule"),
    [
        ([0.05], CosineScheduler(0.1, 0.0, 10)),
        ([0.2], WarmupScheduler(CosineScheduler(0.1, 0.0, 10), target=0.1, warm=5)),
        ([0.2], PlateauScheduler(0.1, 1, 0.5)),
    ],
)
def test_a_rate_that_the_schedule_replaces_is_noted(rates, schedule):
    note = apply(schedule, _optimizer(*rates)).note
    assert note == (
        f"the schedule sets the learning rate, up to 0.1; the lr={rates[0]:g} of the SGD is not used"
    )


def test_the_ratios_of_groups_are_used_even_if_their_rates_are_not():
    note = apply(CosineScheduler(0.1, 0.0, 10), _optimizer(0.05, 0.005)).note
    assert note.endswith("the lr=0.05 of the SGD is not used, only the ratios of its groups")


@pytest.mark.parametrize(
    ("rates", "schedule"),
    [
        ([0.1], CosineScheduler(0.1, 0.0, 10)),
        ([0.1], WarmupScheduler(CosineScheduler(0.1, 0.0, 10), target=0.1, warm=5)),
        ([0.01, 0.1], StepDecay(0.01, 10, 0.5)),  # one group has the rate of the schedule
        ([0.2], CyclicLR(0.2, 0.8, 5, 5)),
        ([0.8], CyclicLR(0.2, 0.8, 5, 5)),
        ([1e-3], CosineScheduler(0.1, 0.0, 10)),  # the default of SGD
        ([1.0, 0.1], CosineScheduler(0.05, 0.0, 10)),  # the rates are ratios
        ([0.05], lambda step: 0.1),
    ],
)
def test_a_rate_of_the_schedule_a_default_and_ratios_are_not_noted(rates, schedule):
    assert apply(schedule, _optimizer(*rates)).note == ""


def test_the_rate_that_an_earlier_training_left_is_not_noted():
    optimizer = _optimizer(0.05, kind=torch.optim.Adam)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    optimizer.step()
    assert apply(CosineScheduler(0.1, 0.0, 10), optimizer).note == ""


def _plateau_loop(steps, *, observe_at=()):
    schedule = PlateauScheduler(0.1, patience=2, factor=0.5)
    bridge = apply(WarmupScheduler(schedule, 0.1, 5), _optimizer(0.1))
    for step in range(1, steps + 1):
        bridge.step()
        if step in observe_at:
            bridge.observe(1.0)
    return bridge


def test_a_loop_that_never_observes_a_metric_is_noted_when_it_ends(capsys):
    bridge = _plateau_loop(150)
    assert capsys.readouterr().err == ""
    del bridge
    told = capsys.readouterr().err
    assert told.count("PlateauScheduler has observed no metric in 150 updates") == 1
    assert "bridge.observe(metric) once per epoch" in told


def test_a_loop_that_never_observes_a_metric_is_noted_once_while_it_runs(capsys):
    bridge = _plateau_loop(20_001)
    del bridge
    assert capsys.readouterr().err.count("has observed no metric in 20000 updates") == 1


@pytest.mark.parametrize(("steps", "observe_at"), [(150, (150,)), (50, ()), (20_001, (19_000,))])
def test_a_loop_that_observes_once_per_epoch_or_is_short_is_not_noted(steps, observe_at, capsys):
    bridge = _plateau_loop(steps, observe_at=observe_at)
    del bridge
    assert capsys.readouterr().err == ""


def test_a_loop_that_ends_with_an_error_is_not_noted(capsys):
    bridge = _plateau_loop(150)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        del bridge
    assert capsys.readouterr().err == ""
