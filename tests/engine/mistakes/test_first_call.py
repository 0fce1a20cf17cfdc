"""Leftovers of a loop without `TrainStep`: backward on the loss, evaluation mode, torch's schedulers."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from flodl.core import StepError
from flodl.engine import TrainStep
from flodl.engine.mistakes.first_call import check_schedulers
from flodl.engine.report import Cause, Journal
from flodl.optim import CosineScheduler

X, Y = torch.ones(8, 4), torch.zeros(8, 2)


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def new_step(*layers: nn.Module, **settings) -> tuple[nn.Module, TrainStep]:
    model = nn.Sequential(nn.Linear(4, 2), *layers)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, tier="eager", **settings)
    return model, step


def test_a_backward_on_the_first_loss_raises() -> None:
    _, step = new_step()
    with pytest.raises(StepError, match=r"loss.backward\(\) was called on.*remove loss.backward\(\)"):
        step(X, Y).backward()


def restored(step: TrainStep) -> TrainStep:
    _, other = new_step()
    other.load_state_dict(step.state_dict())
    return other


@pytest.mark.parametrize("continued", [restored, copy.deepcopy], ids=["load_state_dict", "deepcopy"])
def test_the_first_call_of_a_step_that_continues_is_checked_like_that_of_a_new_one(continued, capsys) -> None:
    _, step = new_step()
    for _ in range(5):
        step(X, Y)
    loss = continued(step)(X, Y)
    with pytest.raises(StepError, match=r"loss.backward\(\) was called on"):
        loss.backward()
    with pytest.raises(StepError, match="was unpacked"):
        _, _ = loss
    assert capsys.readouterr().err == ""


def test_the_first_call_of_a_restored_step_looks_for_broadcasts(capsys, monkeypatch) -> None:
    import torch._dynamo.eval_frame

    # Forget what other tests compile, where the search is left out.
    monkeypatch.setattr(torch._dynamo.eval_frame, "cached_backends", {})

    def regression(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (model(x)[:, :1] - y[:, 0]).square().mean()

    _, step = new_step()
    step(X, Y)
    model = nn.Sequential(nn.Linear(4, 2))
    other = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), regression, tier="eager")
    other.load_state_dict(step.state_dict())
    other(X, Y)
    assert "broadcast to [8, 8]" in capsys.readouterr().err
    assert [event.step for event in other.report().events] == [1]
    assert other.report().first_step_s is not None


def test_a_restored_step_is_searched_for_mistakes_as_often_as_a_new_one(capsys) -> None:
    _, step = new_step()
    for _ in range(40):
        step(X, Y)
    model = nn.Sequential(nn.Linear(4, 2))
    other = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, tier="eager")
    other.load_state_dict(step.state_dict())
    other(X, Y)
    model.extra = nn.Linear(2, 2)
    for _ in range(3):
        other(X, Y)
    assert "'extra.weight' was added after" in capsys.readouterr().err


def test_the_first_loss_is_a_plain_tensor_everywhere_else() -> None:
    _, step = new_step()
    loss = step(X, Y)
    assert type(loss) is torch.Tensor
    file = io.BytesIO()
    torch.save({"loss": loss}, file)
    file.seek(0)
    copies = [
        torch.load(file, weights_only=True)["loss"],
        pickle.loads(pickle.dumps(loss)),
        copy.copy(loss),
        copy.deepcopy(loss),
        loss.clone(),
        loss + 0,
        torch.from_numpy(loss.numpy()),
    ]
    assert all(torch.equal(one, loss) and type(one) is torch.Tensor for one in copies)


def test_a_model_in_evaluation_mode_is_a_warning_once(capsys) -> None:
    model, step = new_step(nn.Dropout(0.5))
    step(X, Y)
    assert capsys.readouterr().err == ""
    model.eval()
    for _ in range(3):
        step.reset_means()  # a new epoch
        step(X, Y)
    told = capsys.readouterr().err
    assert told.count("the model is in evaluation mode, so '1' (Dropout)") == 1
    assert [event.cause for event in step.report().events] == [Cause.PROBABLE_MISTAKE]


def test_a_model_left_in_evaluation_mode_is_reported_in_the_next_step(capsys) -> None:
    model, step = new_step(nn.Dropout(0.5))
    step(X, Y)
    model.eval()  # for a validation, without model.train() after it
    step(X, Y)
    assert capsys.readouterr().err.count("the model is in evaluation mode, so '1' (Dropout)") == 1


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.LayerNorm(2), nn.Dropout(0.0)])
def test_evaluation_mode_that_makes_no_difference_is_not_a_warning(layer: nn.Module, capsys) -> None:
    model, step = new_step(layer)
    model.eval()
    step(X, Y)
    assert capsys.readouterr().err == ""


def test_a_step_on_test_data_in_evaluation_mode_is_a_warning_once(capsys) -> None:
    model, step = new_step(nn.ReLU())
    for _ in range(3):
        model.train()
        step(X, Y)
        model.eval()
        step(X, Y)  # meant as an evaluation
    told = capsys.readouterr().err
    assert told.count("is in evaluation mode in this call, which trains it all the same.") == 1
    assert "call it without the step: with torch.no_grad(): model(x)" in told
    assert [event.step for event in step.report().events] == [1]


def test_a_resumed_step_whose_model_is_in_evaluation_mode_from_the_start_is_not_a_warning(capsys) -> None:
    _, earlier = new_step(nn.ReLU())
    earlier(X, Y)
    model, step = new_step(nn.ReLU())
    step.load_state_dict(earlier.state_dict())
    model.eval()
    step(X, Y)
    assert capsys.readouterr().err == ""


def test_a_part_in_evaluation_mode_is_not_a_warning(capsys) -> None:
    model, step = new_step(nn.BatchNorm1d(2))
    model[1].eval()
    step(X, Y)
    assert capsys.readouterr().err == ""


def test_a_scheduler_of_torch_next_to_a_schedule_is_a_warning_if_rates_are_tensors(capsys) -> None:
    """As on CUDA, where the scheduler changes them in place."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=torch.tensor(0.1))
    journal = Journal()
    check_schedulers(optimizer, journal, 0)
    assert not journal.events
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(2):
        check_schedulers(optimizer, journal, 0)
    assert [event.cause for event in journal.events] == [Cause.PROBABLE_MISTAKE]
    assert capsys.readouterr().err.count("one of torch's learning rate schedulers is attached") == 1


def test_a_loss_that_is_unpacked_says_what_a_step_returns() -> None:
    _, step = new_step()
    with pytest.raises(StepError, match=r"A step returns the loss alone, .* is in step.values") as raised:
        _loss, _values = step(X, Y)
    assert isinstance(raised.value, TypeError)
    first = new_step()[1](X, Y)
    assert (first.dim(), first.ndim, first.item()) == (0, 0, float(first))
    assert torch.stack([first, first]).shape == (2,)


RESTARTED = "the optimizer continues after 3 updates, but the schedule starts from the beginning"


def adam_step(states=None, **settings) -> tuple[TrainStep, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if states is not None:
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
    return TrainStep(model, optimizer, mse, tier="eager", **settings), optimizer


def test_a_schedule_that_starts_again_after_the_states_were_loaded_is_reported(capsys) -> None:
    step, optimizer = adam_step(schedule=lambda number: 0.1 / (1 + number))
    for _ in range(3):
        step(X, Y)
    states = nn.Linear(4, 2).state_dict(), copy.deepcopy(optimizer.state_dict())
    again, _ = adam_step(states, schedule=lambda number: 0.1 / (1 + number))
    for _ in range(3):
        again(X, Y)
    assert capsys.readouterr().err.count(RESTARTED) == 1
    right, _ = adam_step(states, schedule=lambda number: 0.1 / (1 + number))
    right.load_state_dict(step.state_dict())
    right(X, Y)
    without, _ = adam_step(states)
    without(X, Y)
    assert RESTARTED not in capsys.readouterr().err


def test_a_new_schedule_for_an_optimizer_of_this_program_is_not_reported(capsys) -> None:
    step, optimizer = adam_step()
    for _ in range(3):
        step(X, Y)
    model = nn.Linear(4, 2)
    model.weight, model.bias = optimizer.param_groups[0]["params"]
    second = TrainStep(model, optimizer, mse, tier="eager", schedule=lambda number: 0.1)
    second(X, Y)
    assert RESTARTED not in capsys.readouterr().err


def loaded_step(kind, *, with_optimizer: bool, **settings) -> TrainStep:
    """Return a step that continues after two updates of an equal one."""
    steps = []
    for _ in range(2):
        model = nn.Linear(4, 2)
        optimizer = kind(model.parameters(), lr=0.1, **settings)
        steps.append((optimizer, TrainStep(model, optimizer, mse, tier="eager")))
    (first, before), (optimizer, step) = steps
    before(X, Y), before(X, Y)
    step.load_state_dict(before.state_dict())
    if with_optimizer:
        optimizer.load_state_dict(first.state_dict())
    return step


@pytest.mark.parametrize(
    ("kind", "settings"), [(torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.9})]
)
def test_a_step_that_continues_without_the_state_of_its_optimizer_is_a_warning_once(
    kind, settings, capsys
) -> None:
    step = loaded_step(kind, with_optimizer=False, **settings)
    step(X, Y), step(X, Y)
    told = capsys.readouterr().err
    assert told.count(f"continues after 2 updates, but the {kind.__name__} has no state") == 1
    assert "Save optimizer.state_dict() together with step.state_dict()" in told


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_step_that_continues_with_all_there_is_to_load_is_not_a_warning(kind, capsys) -> None:
    loaded_step(kind, with_optimizer=kind is torch.optim.AdamW)(X, Y)
    assert capsys.readouterr().err == ""


def test_the_state_of_a_step_without_updates_needs_no_optimizer(capsys) -> None:
    _, fresh = new_step()
    model = nn.Linear(4, 2)
    step = TrainStep(model, torch.optim.AdamW(model.parameters()), mse, tier="eager")
    step.load_state_dict(fresh.state_dict())
    step(X, Y)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("schedule", "is_reported"),
    [
        (CosineScheduler(0.1, 0.0, 20), True),
        (CosineScheduler(0.1, 0.0, 300), False),
        (CosineScheduler(0.1, 0.001, 20), False),
        (lambda update: 0.1 if update < 20 else 0.0, False),  # a function may know what it does
    ],
)
def test_a_schedule_that_has_been_at_zero_for_long_is_reported_once(schedule, is_reported, capsys) -> None:
    _, step = new_step(schedule=schedule)
    for _ in range(260):
        step(X, Y)
    text = capsys.readouterr().err
    assert text.count("the learning rate has been 0 since update 20") == is_reported


def test_a_step_function_that_takes_the_model_last_is_told_the_order() -> None:
    model = nn.Linear(4, 2)

    def step_fn(x, y, model):
        return nn.functional.mse_loss(model(x), y)

    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager")
    with pytest.raises(StepError, match=r"takes \(x, y, model\).*Write def step_fn\(model, x, y\)\."):
        step(X, Y)
