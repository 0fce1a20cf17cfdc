"""Changes that hooks make between two epochs and that ranks do not receive are reported."""

import copy

import pytest
import torch

from flodl.core import TrainError

pytestmark = pytest.mark.slow
ADAM = {"optimizer": lambda groups: torch.optim.Adam(groups, lr=0.05)}


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.dropout = torch.nn.Linear(4, 1), torch.nn.Dropout(0.1)
        self.register_buffer("k", torch.ones(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.scale, self.calls = 1.0, 0

    def forward(self, x):
        self.calls += 1
        return self.linear(self.dropout(x)) * self.k * self.scale


def hook(name, change, *, epoch=0):
    """Return a hook that changes something once; on_epoch_start of the first epoch comes before the ranks."""
    at = epoch + (name == "on_epoch_start")

    def called(trainer, epoch):
        if epoch == at:
            change(trainer)

    called.__name__ = name
    return called


def fit(make, data, change, *, name="on_epoch_end", epochs=3, model=None, **settings):
    trainer = make(model, hooks=[hook(name, change)], **{**ADAM, **settings})
    trainer.fit(data, epochs=epochs, batch_size=16, eval_data=data)
    return trainer


def zero(tensor):
    with torch.no_grad():
        tensor.zero_()


@pytest.mark.parametrize("name", ["on_evaluate_end", "on_epoch_end", "on_epoch_start"])
def test_a_changed_weight_is_an_error_that_names_the_hook(make, data, name):
    epoch = 2 if name == "on_epoch_start" else 1
    where = rf"a hook changed the weights of the model \('weight'\) in {name} of epoch {epoch}\."
    with pytest.raises(TrainError, match=where):
        fit(make, data, lambda trainer: zero(trainer.model.weight), name=name)


@pytest.mark.parametrize("buffer", ["k", "count"])
def test_a_changed_buffer_is_an_error_that_names_it(make, data, buffer):
    where = rf"a hook changed a buffer of the model \('{buffer}'\) in on_epoch_end of epoch 1"
    with pytest.raises(TrainError, match=where):
        fit(make, data, lambda trainer: getattr(trainer.model, buffer).add_(1), model=Scaled())


def test_weights_may_change_if_a_later_hook_restores_them(make, data):
    kept = []

    def swap(trainer):
        kept.append(trainer.model.weight.detach().clone())
        zero(trainer.model.weight)

    def restore(trainer):
        with torch.no_grad():
            trainer.model.weight.copy_(kept[0])

    hooks = [hook("on_epoch_end", swap), hook("on_epoch_start", restore)]
    make(hooks=hooks).fit(data, epochs=2, batch_size=16)


def test_weights_may_change_after_the_last_epoch(make, data):
    trainer = fit(make, data, lambda trainer: zero(trainer.model.weight), epochs=1)
    assert not trainer.model.weight.any()


def clear(trainer):
    trainer.optimizer.state.clear()


def zero_momentum(trainer):
    for state in trainer.optimizer.state.values():
        state["exp_avg"].zero_()


def zero_data(trainer):
    for state in trainer.optimizer.state.values():
        state["exp_avg"].data.zero_()


def load(trainer):
    trainer.optimizer.load_state_dict(copy.deepcopy(trainer.optimizer.state_dict()))


@pytest.mark.parametrize("change", [clear, zero_momentum, zero_data, load])
@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_a_changed_state_of_the_optimizer_is_an_error(make, data, change, policy):
    with pytest.raises(TrainError, match=r"changed the state of the optimizer in on_epoch_end of epoch 1\."):
        fit(make, data, change, policy=policy)


def test_reading_the_state_and_setting_a_rate_are_allowed(make, data):
    def change(trainer):
        trainer.optimizer.state_dict()
        trainer.optimizer.param_groups[0]["lr"] = 0.01

    assert fit(make, data, change).optimizer.param_groups[0]["lr"] == 0.01


def test_a_state_cleared_after_the_last_epoch_stays_cleared(make, data):
    assert not fit(make, data, clear, epochs=1).optimizer.state


def two_parts():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    model[0].requires_grad_(False)
    return model


def add_group(trainer):
    trainer.model[0].requires_grad_(True)
    trainer.optimizer.add_param_group({"params": [*trainer.model[0].parameters()], "lr": 0.01})


def second_part(groups):
    params = [one for group in groups for one in group["params"]]
    return torch.optim.Adam(params[-2:], lr=0.05)


@pytest.mark.parametrize("name", ["on_epoch_end", "on_epoch_start"])
def test_an_added_parameter_group_is_an_error_before_the_next_epoch(make, data, name, capsys):
    error = "added parameter groups to the optimizer, which had 1 and has 2, in .* Pass all parameters to"
    with pytest.raises(TrainError, match=error):
        fit(make, data, add_group, name=name, model=two_parts(), optimizer=second_part)
    assert "nothing trains them" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["on_start", "on_epoch_start"])
def test_a_group_that_is_added_before_ranks_start_is_trained(make, data, name):
    def called(trainer):
        if not trainer.epochs and len(trainer.optimizer.param_groups) == 1:
            add_group(trainer)

    called.__name__ = name
    found = []
    for options in ({"device": "cpu"}, {"policy": "sync"}):
        trainer = make(two_parts(), optimizer=second_part, hooks=[called], **options)
        trainer.fit(data, epochs=2, batch_size=16)
        found.append(trainer.model[0].weight.detach())
    torch.testing.assert_close(*found)


def halve(trainer):
    trainer.model.scale *= 0.5


def no_dropout(trainer):
    trainer.model.dropout.p = 0.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (halve, "in on_epoch_end of epoch 1: model.scale is now 0.5, was 1.0."),
        (no_dropout, "in on_epoch_end of epoch 1: model.dropout.p is now 0.0, was 0.1."),
    ],
)
def test_a_changed_attribute_of_a_module_is_a_warning(make, data, change, said, capsys):
    fit(make, data, change, model=Scaled())
    shown = capsys.readouterr().err
    assert f"a hook changed an attribute of a module {said}" in shown
    assert shown.count("ranks continue without the change") == 1


def test_a_warning_about_an_attribute_appears_once(make, data, capsys):
    def on_epoch_end(trainer):
        halve(trainer)

    make(Scaled(), hooks=[on_epoch_end]).fit(data, epochs=4, batch_size=16)
    assert capsys.readouterr().err.count("model.scale is now") == 1


def test_a_registered_hook_of_torch_is_a_warning(make, data, capsys):
    def change(trainer):
        trainer.model.linear.register_forward_hook(lambda module, inputs, output: output * 0)

    fit(make, data, change, model=Scaled())
    said = (
        "a hook registered or removed hooks of torch in on_epoch_end of epoch 1: model.linear.forward_hooks."
    )
    assert said in capsys.readouterr().err


def test_attributes_that_modules_change_themselves_cause_no_warning(make, data, capsys):
    fit(make, data, lambda trainer: trainer.model(data[0]), model=Scaled())
    assert "a hook changed" not in capsys.readouterr().err
