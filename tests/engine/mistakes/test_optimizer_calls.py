"""Left-over calls of the optimizer raise; updates of one's own do not."""

from __future__ import annotations

import copy
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from flodl.core import StepError
from flodl.engine import TrainStep
from flodl.graph import FlowBuilder

X, Y = torch.ones(8, 4), torch.zeros(8, 2)


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def parts(make=torch.optim.SGD, **settings):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = make(model.parameters(), lr=0.1)
    return model, optimizer, TrainStep(model, optimizer, mse, tier="eager", **settings)


def weights_of(model: nn.Module) -> list[list[float]]:
    return [parameter.tolist() for parameter in model.parameters()]


def test_clearing_the_gradients_of_a_half_full_window_raises() -> None:
    _, optimizer, step = parts(accumulate=4)
    optimizer.zero_grad()
    step(X, Y)
    with pytest.raises(StepError, match=r"zero_grad\(\) was called after 1 of 4 micro-batches.*Remove"):
        optimizer.zero_grad()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_clearing_the_gradients_between_updates_does_no_harm(set_to_none: bool) -> None:
    plain, cleared = parts(accumulate=2), parts(accumulate=2)
    for _ in range(3):
        cleared[1].zero_grad(set_to_none=set_to_none)
        for _, _, step in (plain, cleared):
            step(X, Y)
            step(X, Y)
    assert weights_of(plain[0]) == weights_of(cleared[0])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_clearing_the_gradients_through_the_model_raises_at_the_next_micro_batch(set_to_none: bool) -> None:
    model, _, step = parts(accumulate=3)
    step(X, Y)
    model.zero_grad(set_to_none=set_to_none)
    with pytest.raises(StepError, match=r"gradients of 1 of 3 micro-batches.*were cleared.*give_up_window"):
        step(X, Y)


@pytest.mark.parametrize("path", ["body", "head"])
def test_a_part_that_is_frozen_within_a_window_keeps_its_weights_and_the_other_gets_the_whole_window(
    path: str,
) -> None:
    torch.manual_seed(0)
    graph = FlowBuilder(nn.Linear(4, 3)).tag("body").through(nn.Linear(3, 2)).tag("head").build()
    other = copy.deepcopy(graph)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (graph, other)]
    step = TrainStep(graph, optimizers[0], mse, tier="eager", accumulate=3)
    step(X, Y)
    graph.freeze(path)
    step(X, Y)
    step(X, Y)
    mse(other, X, Y).backward()
    other.freeze(path)
    optimizers[1].step()
    assert step.updates == 1
    for one, expected in zip(graph.parameters(), other.parameters()):
        assert torch.allclose(one, expected, atol=1e-6)


def test_changed_gradients_are_not_called_cleared_where_some_of_them_are_zero() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    nn.init.zeros_(model[1].weight)  # the first layer gets gradients of zero
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, accumulate=2)
    step(X, Y)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with pytest.raises(StepError, match=r"of 1 of 2 micro-batches .* were changed"):
        step(X, Y)


def test_clearing_the_gradients_in_the_step_function_raises() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def clearing(model, x, y):
        optimizer.zero_grad()
        return mse(model, x, y)

    step = TrainStep(model, optimizer, clearing, accumulate=2)
    step(X, Y)
    with pytest.raises(StepError, match="after 1 of 2 micro-batches"):
        step(X, Y)


def attacked(x: torch.Tensor) -> torch.Tensor:
    assert x.grad is not None
    return (x + 0.1 * x.grad.sign()).detach()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_clearing_the_gradients_after_a_backward_in_the_step_function_raises(set_to_none: bool) -> None:
    def adversarial(model, x, y):
        x = x.clone().requires_grad_()
        mse(model, x, y).backward()
        model.zero_grad(set_to_none=set_to_none)
        return mse(model, attacked(x), y)

    model = nn.Linear(4, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), adversarial, accumulate=3)
    step(X, Y)
    with pytest.raises(
        StepError, match=r"cleared the gradients of 1 of 3 .*torch\.autograd\.grad\(loss, x\)"
    ):
        step(X, Y)


@pytest.mark.parametrize("strict", [True, False])
def test_whether_gradients_are_zeros_is_not_read_where_the_host_must_not_wait(
    strict: bool, monkeypatch
) -> None:
    def with_another_loss(model, x, y):
        (model.weight.sum() * 1e-3).backward()
        return mse(model, x, y)

    model, read = nn.Linear(4, 2), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = TrainStep(model, optimizer, with_another_loss, accumulate=2, strict=strict, tier="eager")
    monkeypatch.setattr(torch.Tensor, "any", lambda *_: read.append(True) or torch.tensor(True))
    step(X, Y)
    step(X, Y)
    assert bool(read) != strict


def test_gradients_that_a_step_function_puts_back_are_accumulated() -> None:
    def adversarial(model, x, y):
        kept = [p.grad if p.grad is None else p.grad.clone() for p in model.parameters()]
        x = x.clone().requires_grad_()
        mse(model, x, y).backward()
        for parameter, grad in zip(model.parameters(), kept):
            parameter.grad = grad
        return mse(model, attacked(x), y)

    def plain(model, x, y):
        x = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(mse(model, x, y), x)
        return mse(model, (x + 0.1 * grad.sign()).detach(), y)

    weights = []
    for step_fn in (adversarial, plain):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, accumulate=2)
        for _ in range(4):
            step(X, Y)
        weights.append(weights_of(model))
    assert weights[0] == weights[1]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_a_second_update_from_the_same_gradients_raises(make, accumulate: int) -> None:
    model, optimizer, step = parts(make, accumulate=accumulate)
    optimizer.step()  # without gradients, it does nothing
    for _ in range(accumulate):
        step(X, Y)
    before = weights_of(model)
    with pytest.raises(StepError, match=r"already applied these gradients.*Remove optimizer.step\(\)"):
        optimizer.step()
    assert weights_of(model) == before


def test_an_update_within_a_window_raises() -> None:
    _, optimizer, step = parts(accumulate=2)
    step(X, Y)
    with pytest.raises(StepError, match=r"step\(\) was called after 1 of 2 micro-batches.*too early"):
        optimizer.step()
    step(X, Y)
    assert step.updates == 1


def test_a_grad_scaler_that_was_left_in_place_raises() -> None:
    _, optimizer, step = parts()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    step(X, Y)
    with pytest.raises(StepError, match="already applied"):
        scaler.step(optimizer)


def test_an_enabled_grad_scaler_that_was_left_in_place_raises_an_error_of_the_step_or_of_torch() -> None:
    _, optimizer, step = parts()
    scaler = torch.amp.GradScaler("cpu")
    loss = step(X, Y)
    with pytest.raises(AssertionError, match="Attempted step but _scale is None"):
        scaler.step(optimizer)
    scaler.scale(loss)
    with pytest.raises(StepError, match="already applied"):
        scaler.step(optimizer)


@pytest.mark.parametrize(
    "clear",
    [
        lambda model, optimizer: optimizer.zero_grad(),
        lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
        lambda model, optimizer: model.zero_grad(),
        lambda model, optimizer: model.zero_grad(set_to_none=False),
    ],
)
def test_an_update_of_ones_own_between_two_updates_is_allowed(clear) -> None:
    model, optimizer, step = parts()
    for _ in range(3):
        step(X, Y)
        clear(model, optimizer)
        model(X).square().mean().backward()
        before = weights_of(model)
        optimizer.step()
        assert weights_of(model) != before


def test_two_steps_may_share_an_optimizer() -> None:
    model, optimizer, first = parts()
    second = TrainStep(model, optimizer, lambda model, x: model(x).square().mean(), tier="eager")
    for _ in range(3):
        first(X, Y)
        second(X)
    assert first.updates == second.updates == 3
    with pytest.raises(StepError, match="already applied"):
        optimizer.step()


def test_the_optimizer_of_a_step_that_is_gone_may_be_used_freely() -> None:
    _, optimizer, step = parts(accumulate=2)
    step(X, Y)
    calls = weakref.ref(step)
    del step
    assert calls() is None
    optimizer.zero_grad()
    optimizer.step()


def test_an_optimizer_is_freed_without_the_garbage_collector() -> None:
    _, optimizer, step = parts()
    step(X, Y)
    gone = weakref.ref(optimizer)
    del step, optimizer
    assert gone() is None


def test_many_steps_for_one_optimizer_do_not_pile_up() -> None:
    model, optimizer, _ = parts()
    for _ in range(2000):
        step = TrainStep(model, optimizer, mse, tier="eager")
    step(X, Y)
    optimizer.zero_grad()
    optimizer.step()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "scheduler", [lambda o: StepLR(o, 1, 0.5), lambda o: OneCycleLR(o, 0.1, total_steps=9)]
)
def test_torchs_schedulers_work_whether_they_are_created_before_or_after(when: str, scheduler) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rates = scheduler(optimizer) if when == "before" else None
    step = TrainStep(model, optimizer, mse, tier="eager")
    rates = rates or scheduler(optimizer)
    seen = []
    for _ in range(4):
        step(X, Y)
        rates.step()  # warns, which is an error here, if it does not notice the update
        seen.append(optimizer.param_groups[0]["lr"])
    assert len(set(seen)) == 4
    with pytest.raises(StepError, match="already applied"):
        optimizer.step()


def test_a_copied_or_pickled_optimizer_is_like_one_without_a_step() -> None:
    _, optimizer, step = parts(torch.optim.AdamW)
    step(X, Y)
    for copied in (copy.copy(optimizer), copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        copied.step()
        copied.zero_grad()
        assert copied.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]


class CopiesAll(torch.optim.SGD):
    """An optimizer that copies all of its attributes."""

    def __getstate__(self):
        return vars(self).copy()

    def __setstate__(self, state):
        vars(self).update(state)


def test_an_optimizer_that_copies_all_of_its_attributes_can_be_copied() -> None:
    _, optimizer, step = parts(CopiesAll)
    step(X, Y)
    copied = copy.deepcopy(optimizer)
    copied.zero_grad()
    copied.step()
    assert optimizer.param_groups[0]["params"][0].grad is not None


def test_a_copied_step_watches_the_copied_optimizer() -> None:
    model, optimizer, step = parts(accumulate=2)
    step(X, Y)
    _, copied_optimizer, copied = copy.deepcopy((model, optimizer, step))
    with pytest.raises(StepError, match="after 1 of 2"):
        copied_optimizer.zero_grad()
    copied(X, Y)
    with pytest.raises(StepError, match="already applied"):
        copied_optimizer.step()


class ClearsItself(torch.optim.SGD):
    """An optimizer with methods of its own, which call each other."""

    cleared = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.cleared += 1
        super().zero_grad(set_to_none)

    def step(self, closure=None):
        super().step(closure)
        self.zero_grad()


def test_an_optimizer_with_methods_of_its_own_is_called_by_the_step() -> None:
    _, optimizer, step = parts(ClearsItself, accumulate=2)
    for _ in range(4):
        step(X, Y)
    assert step.updates == 2
    assert optimizer.cleared == 4  # before each window and in each update


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize(
    "change",
    [
        lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
        lambda model: nn.utils.clip_grad_value_(model.parameters(), 1e-3),
        lambda model: mse(model, X, Y).backward(),
        lambda model: [setattr(one, "grad", one.grad * 2) for one in model.parameters()],
    ],
)
def test_changing_the_gradients_of_a_half_full_window_raises(before: int, change) -> None:
    model, _, step = parts(accumulate=3)
    for _ in range(3 + before):
        step(X, Y)
    change(model)
    with pytest.raises(StepError, match=rf"of {before} of 3 micro-batches .* were changed.*clip_norm=…"):
        step(X, Y)


def test_clearing_the_gradients_is_also_noticed_later_in_a_window() -> None:
    model, _, step = parts(accumulate=3)
    step(X, Y)
    step(X, Y)
    model.zero_grad(set_to_none=False)
    with pytest.raises(StepError, match=r"gradients of 2 of 3 micro-batches.*were cleared"):
        step(X, Y)


def test_gradients_may_be_changed_by_hooks_and_between_two_updates() -> None:
    model, _, step = parts(accumulate=3)
    model.weight.register_hook(lambda grad: grad * 2)

    def clamp(one):
        one.grad.clamp_(-1, 1)

    model.weight.register_post_accumulate_grad_hook(clamp)
    for _ in range(4):
        for _ in range(3):
            step(X, Y)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    step(X, Y)
    step.flush()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    step(X, Y)
    step.give_up_window()
    step(X, Y)
    assert step.updates == 5


def test_a_window_that_is_given_up_or_flushed_is_not_an_accident() -> None:
    _, optimizer, step = parts(accumulate=3)
    step(X, Y)
    step.give_up_window()
    step(X, Y)
    step.flush()
    optimizer.zero_grad()
    assert step.updates == 1


def test_a_step_of_another_model_may_not_write_to_the_gradients_of_a_window() -> None:
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)

    def criticize(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).mean() - model(generator(x).detach()).mean()

    def generate(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return -critic(model(x)).mean()

    def generate_with_detached_weights(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        weights = {name: parameter.detach() for name, parameter in critic.named_parameters()}
        return -torch.func.functional_call(critic, weights, model(x)).mean()

    def train(loss) -> None:
        first = TrainStep(
            critic, torch.optim.SGD(critic.parameters(), lr=0.1), criticize, accumulate=2, tier="eager"
        )
        second = TrainStep(generator, torch.optim.SGD(generator.parameters(), lr=0.1), loss, tier="eager")
        for _ in range(4):
            first(torch.randn(8, 4))
            second(torch.randn(8, 4))

    with pytest.raises(StepError, match=r"were changed.*torch.func.functional_call"):
        train(generate)
    critic.zero_grad()
    train(generate_with_detached_weights)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_update_within_the_step_function_raises(accumulate: int) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        return model(x).mean()

    step = TrainStep(model, optimizer, update, accumulate=accumulate)
    with pytest.raises(StepError, match=r"the step function called optimizer\.step\(\)"):
        step(torch.randn(8, 4))


class TwoParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 2)


def train_actor(model, x, y):
    return (model.actor(x) - y).square().mean()


def train_critic(model, x, y):
    return (model.critic(x) - y).square().mean()


def steps_of_two_parts(model: TwoParts, other_accumulate: int = 3) -> list[TrainStep]:
    return [
        TrainStep(model, torch.optim.SGD(part.parameters(), lr=0.1), fn, tier="eager", accumulate=accumulate)
        for part, fn, accumulate in (
            (model.actor, train_actor, 3),
            (model.critic, train_critic, other_accumulate),
        )
    ]


@pytest.mark.parametrize("other_accumulate", [1, 3])
def test_another_step_of_the_model_that_clears_the_gradients_is_named(other_accumulate: int) -> None:
    actor, critic = steps_of_two_parts(TwoParts(), other_accumulate)
    actor(X, torch.zeros(len(X), 2))
    critic(X, torch.zeros(len(X), 2))
    with pytest.raises(StepError, match=r"were cleared.*TrainStep of train_critic\(.*only the part"):
        actor(X, torch.zeros(len(X), 2))


def test_a_step_that_shares_the_optimizer_and_clears_the_gradients_is_named() -> None:
    model = TwoParts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    actor, critic = (
        TrainStep(model, optimizer, fn, tier="eager", accumulate=3) for fn in (train_actor, train_critic)
    )
    actor(X, torch.zeros(len(X), 2))
    critic(X, torch.zeros(len(X), 2))
    with pytest.raises(StepError, match=r"TrainStep of train_critic\(.*call flush\(\) on this step before"):
        actor(X, torch.zeros(len(X), 2))


def test_a_step_of_another_model_is_not_named_if_the_program_clears_the_gradients() -> None:
    model, other = TwoParts(), TwoParts()
    actor, critic = steps_of_two_parts(model)[0], steps_of_two_parts(other)[1]
    actor(X, torch.zeros(len(X), 2))
    critic(X, torch.zeros(len(X), 2))
    model.zero_grad()
    with pytest.raises(StepError, match="were cleared") as raised:
        actor(X, torch.zeros(len(X), 2))
    assert "train_critic" not in str(raised.value)


def test_steps_of_the_parts_of_a_model_accumulate_apart() -> None:
    model = TwoParts()
    steps = [
        TrainStep(
            part,
            torch.optim.SGD(part.parameters(), lr=0.1),
            lambda part, x, y: (part(x) - y).square().mean(),
            tier="eager",
            accumulate=2,
        )
        for part in (model.actor, model.critic)
    ]
    before = weights_of(model)
    for _ in range(2):
        for step in steps:
            step(X, torch.ones(len(X), 2))
    assert all(was != now for was, now in zip(before, weights_of(model)))
