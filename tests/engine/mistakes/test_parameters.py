"""A parameter that the optimizer does not have, although it should, raises instead of staying untrained."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, Trainer
from flodl.core import StepError
from flodl.engine import TrainStep
from flodl.train import Phase

X, Y = torch.ones(8, 4), torch.zeros(8, 1)


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def new_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


def new_step(model: nn.Module, **settings) -> TrainStep:
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), mse, tier="eager", **settings)


def replace_module(model) -> None:
    model[1] = nn.Linear(4, 1)


def replace_parameter(model) -> None:
    model[1].weight = nn.Parameter(torch.zeros(1, 4))


def assign_state(model) -> None:
    model.load_state_dict({name: one.clone() for name, one in model.state_dict().items()}, assign=True)


@pytest.mark.parametrize("change", [replace_module, replace_parameter, assign_state])
@pytest.mark.parametrize("steps_before", [0, 1, 5])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_parameter_that_was_replaced_raises(change, steps_before: int, accumulate: int) -> None:
    model = new_model()
    step = new_step(model, accumulate=accumulate)
    for _ in range(steps_before):
        step(X, Y)
    step.flush()
    change(model)
    with pytest.raises(StepError, match=r"at '\d.weight': this parameter was replaced after the TrainStep"):  # noqa: PT012
        for _ in range(2 * accumulate + 1):
            step(X, Y)


def test_a_parameter_that_was_replaced_in_a_model_that_freezes_parts_raises_after_a_while() -> None:
    model = new_model()
    step = new_step(model)
    model.requires_grad_(False)
    model[1].bias.requires_grad_(True)
    step(X, Y)
    model.requires_grad_(True)
    step(X, Y)
    replace_module(model)
    step.load_state_dict({**step.state_dict(), "steps": 1022})
    with pytest.raises(StepError, match="was replaced"):
        step(X, Y)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[1].requires_grad_(False),
        lambda model: model[1].weight.data.zero_(),
        lambda model: model.load_state_dict(new_model().state_dict()),
        lambda model: setattr(model, "1", nn.Linear(4, 1).requires_grad_(False)),
        lambda model: model.append(nn.Identity()),
        lambda model: model.insert(1, nn.Identity()),
        lambda model: nn.utils.parametrizations.spectral_norm(model[1]),
    ],
)
def test_changes_that_leave_nothing_untrained_are_allowed(change, capsys) -> None:
    model = new_model()
    step = new_step(model)
    step(X, Y)
    change(model)
    for _ in range(3):
        step(X, Y)
    assert capsys.readouterr().err == ""


def test_a_new_parameter_in_the_optimizer_is_allowed(capsys) -> None:
    model = new_model()
    step = new_step(model)
    model[1] = nn.Linear(4, 1)
    step_optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    TrainStep(model, step_optimizer, mse)(X, Y)
    model.append(nn.Linear(1, 1))
    step = TrainStep(model, step_optimizer, mse)
    step_optimizer.add_param_group({"params": model[2].parameters()})
    step(X, Y)
    assert capsys.readouterr().err == ""


def test_a_parameter_that_was_added_without_the_optimizer_is_a_warning(capsys) -> None:
    model = new_model()
    step = new_step(model)
    model.append(nn.Linear(1, 1))
    for _ in range(3):
        step(X, Y)
    told = capsys.readouterr().err
    assert told.count("the parameter '2.weight' was added after the TrainStep was created") == 1
    assert [event.cause for event in step.report().events] == ["probable_mistake"]


def test_an_optimizer_from_before_a_module_was_replaced_raises() -> None:
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    replace_module(model)
    step = TrainStep(model, optimizer, mse)
    with pytest.raises(StepError, match=r"at '1.weight': the optimizer does not have.*\(1, 4\), \(1,\)"):
        step(X, Y)


def test_parameters_of_a_loss_and_a_model_of_which_a_part_is_trained_are_allowed(capsys) -> None:
    """The optimizer has parameters outside the model, and the model has some that it does not train."""
    model, scale = new_model(), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*model[1].parameters(), scale], lr=0.01)
    step = TrainStep(model, optimizer, lambda model, x, y: mse(model, x, y) * scale.exp() - scale)
    step(X, Y)
    assert scale.item() != 1.0
    assert "the optimizer does not have '0.weight', '0.bias' of the model" in capsys.readouterr().err


def test_one_optimizer_for_two_models_is_allowed() -> None:
    one, other = new_model(), new_model()
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.01)
    for step in (TrainStep(one, optimizer, mse), TrainStep(other, optimizer, mse)):
        step(X, Y)


def reported(step: TrainStep) -> list[str]:
    return [event.reason for event in step.report().events if event.kind == "parameters"]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_parameters_that_no_optimizer_has_are_reported_once(capsys, accumulate: int) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.01)
    step = TrainStep(model, optimizer, mse, tier="eager", accumulate=accumulate)
    for _ in range(4):
        step(X, Y)
    (reason,) = reported(step)
    assert reason.startswith(
        "the optimizer does not have '0.weight', '0.bias', '1.weight' and 1 more of the model, although"
    )
    assert "requires_grad_(False)" in reason
    assert capsys.readouterr().err.count("nothing trains them") == 1


def test_frozen_unused_and_otherwise_trained_parameters_are_not_reported(capsys) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.head = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 1)
            self.unused, self.critic = nn.Linear(4, 4), nn.Linear(1, 1)

        def forward(self, x):
            return self.critic(self.head(self.frozen(x)))

    model = Net()
    other = torch.optim.SGD(model.critic.parameters(), lr=0.01)
    step = TrainStep(model, torch.optim.SGD(model.head.parameters(), lr=0.01), mse, tier="eager")
    step(X, Y)
    assert reported(step) == []
    assert capsys.readouterr().err == ""
    assert other.param_groups


def test_a_trainer_reports_parameters_that_no_optimizer_has(capsys) -> None:
    model = new_model()
    trainer = Trainer(
        model, mse, optimizer=torch.optim.SGD(model[1].parameters(), lr=0.01), device="cpu", monitor=False
    )
    trainer.fit((X, Y), epochs=2, batch_size=4)
    assert capsys.readouterr().err.count("the optimizer does not have '0.weight', '0.bias' of the model") == 1


THAWED = "the optimizer does not have '0.weight', '0.bias' of the model, although they receive gradients"


def head_only() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = new_model()
    model[0].requires_grad_(False)
    return model, torch.optim.SGD(model[1].parameters(), lr=0.01)


def test_parameters_that_are_thawed_later_and_in_no_optimizer_are_reported_once(capsys) -> None:
    model, optimizer = head_only()
    step = TrainStep(model, optimizer, mse, tier="eager")
    for _ in range(3):
        step(X, Y)
    assert reported(step) == []
    model[0].requires_grad_(True)
    for _ in range(600):
        step(X, Y)
    assert capsys.readouterr().err.count(THAWED) == 1


def test_a_short_run_reports_parameters_that_are_thawed_and_in_no_optimizer(capsys) -> None:
    model, optimizer = head_only()
    step = TrainStep(model, optimizer, mse, tier="eager")
    for number in range(40):
        if number == 20:
            model[0].requires_grad_(True)
        step(X, Y)
    assert capsys.readouterr().err.count(THAWED) == 1


def test_the_report_has_parameters_that_were_thawed_a_moment_ago(capsys) -> None:
    model, optimizer = head_only()
    step = TrainStep(model, optimizer, mse, tier="eager")
    for _ in range(40):
        step(X, Y)
    model[0].requires_grad_(True)
    step(X, Y)
    assert any(THAWED in event.reason for event in step.report().events)
    step.report()
    assert capsys.readouterr().err.count(THAWED) == 1


def test_thawed_parameters_that_the_optimizer_gets_are_not_reported(capsys) -> None:
    model, optimizer = head_only()
    step = TrainStep(model, optimizer, mse, tier="eager")
    step(X, Y)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": [*model[0].parameters()]})
    step.reset_means()
    for _ in range(3):
        step(X, Y)
    assert "the optimizer does not have" not in capsys.readouterr().err


def test_a_trainer_reports_parameters_that_are_thawed_between_two_fits(capsys) -> None:
    model, optimizer = head_only()
    trainer = Trainer(model, mse, optimizer=optimizer, device="cpu", monitor=False)
    trainer.fit((X, Y), epochs=1, batch_size=4)
    model[0].requires_grad_(True)
    trainer.fit((X, Y), epochs=2, batch_size=4)
    assert capsys.readouterr().err.count(THAWED) == 1


def test_a_trainer_reports_parameters_that_a_phase_thaws_in_the_last_epoch(capsys) -> None:
    graph = FlowBuilder(nn.Linear(4, 4)).tag("encoder").through(nn.Linear(4, 1)).tag("head").build()
    graph.freeze("encoder")
    trainer = Trainer(
        graph,
        mse,
        optimizer=torch.optim.SGD(graph.parameters_at("head"), lr=0.01),
        hooks=[Phase(1, thaw=["encoder"])],
        device="cpu",
        monitor=False,
    )
    trainer.fit((X, Y), epochs=2, batch_size=4)
    assert capsys.readouterr().err.count("although they receive gradients: nothing trains them") == 1


def test_a_step_function_that_trains_a_copy_of_the_model_raises() -> None:
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = TrainStep(copy.deepcopy(model), optimizer, lambda _, x, y: mse(model, x, y))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(StepError, match=r"not the one that is trained.*Use its first argument"):
        step(X, Y)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_model_that_computes_features_for_another_module_is_fine(is_frozen: bool) -> None:
    backbone, head = nn.Linear(4, 4).requires_grad_(not is_frozen), nn.Linear(4, 1)

    def loss_of_head(backbone, x, y):
        with torch.no_grad():
            x = backbone(x)
        return mse(head, x, y)

    step = TrainStep(backbone, torch.optim.SGD(head.parameters(), lr=0.1), loss_of_head)
    step(X, Y)
    assert step.report().events == ()


def test_a_step_whose_optimizer_belongs_to_another_model_is_reported(capsys) -> None:
    generator, discriminator = nn.Linear(4, 2), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (generator, discriminator)]
    for optimizer in optimizers:
        step = TrainStep(generator, optimizer, lambda g, z: discriminator(g(z)).mean(), tier="eager")
        for _ in range(3):
            step(torch.randn(8, 4))
        told = capsys.readouterr().err
        is_swapped = optimizer is optimizers[1]
        assert told.count("the optimizer of this step has none of the parameters of its model") == is_swapped
