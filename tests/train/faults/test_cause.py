"""A report about NaN names the module, the samples and the last good bundle."""

import json

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, Loader, TrainStep
from flodl.checkpoint import list_bundles
from flodl.core import NotFiniteError
from flodl.engine import find_non_finite
from flodl.train.batches.recent import RecentBatches
from flodl.train.faults import cause

NAN = float("nan")


class Explodes(nn.Module):
    """Overflows for samples whose first feature is 100."""

    def forward(self, x):
        return torch.where(x[:, :1] == 100, torch.exp(x * 1e9), x)


class Root(nn.Module):
    """Finite values, and a gradient that is not at 0."""

    def forward(self, x):
        return (x * 0).sqrt() + x


def graph(bad, first=None):
    torch.manual_seed(0)
    inner = FlowBuilder(first or nn.Identity()).through(bad).tag("bad").through(nn.Linear(3, 3))
    encoder = inner.label("encoder").build()
    return FlowBuilder(encoder).through(nn.Linear(3, 1)).build()


def failure(trainer, data, **settings):
    with pytest.raises(NotFiniteError) as caught:
        trainer.fit(data, **{"epochs": 3, "batch_size": 4, **settings})
    return caught.value


def with_sample(data, index, value):
    x = data[0].clone()
    x[index] = value
    return x, data[1]


def test_the_first_module_with_a_non_finite_output_is_named_with_the_samples(make, data, tmp_path):
    trainer = make(graph(Explodes()), checkpoint_dir=tmp_path, save_every_steps=1)
    bad = with_sample(data, 7, 100.0)
    order = Loader(bad, 4, seed=0).sample_indices(0, 20)
    at = order.index(7) // 4
    error = failure(trainer, bad)
    assert error.path == "encoder.bad"
    assert error.samples == tuple(order[4 * at : 4 * at + 4])
    assert error.bundle == list_bundles(tmp_path / "bundles")[-1].path
    listed = ", ".join(map(str, error.samples))
    assert str(error) == (
        "at 'encoder.bad': the loss or the gradients were not finite in 1 of the updates up to "
        f"{at + 1}. Those updates were skipped, so the weights are those of the last finite update. "
        "When the batch is run again, the output of this Explodes is the first one that is not finite. "
        f"It is batch {at + 1} of epoch 1, with the samples {listed}; not finite: sample 7. "
        f"The last good bundle is {str(error.bundle)!r}. Lower the learning rate or clip the gradients. "
        "With nan='skip', training continues."
    )


def test_a_batch_with_nan_is_named_as_the_cause(make, data):
    error = failure(make(), with_sample(data, 3, NAN))
    assert error.path == "0"
    assert "part 0 of the batch is not finite; the output of this Linear is the first to" in str(error)
    assert "not finite: sample 3. Remove or repair these samples." in str(error)


def test_a_gradient_that_is_not_finite_is_traced_to_its_module_and_operation(make, data):
    error = failure(make(graph(Root(), first=nn.Linear(3, 3))), data)
    assert error.path == "encoder.bad"
    assert "the backward of this Root is the first that is not finite (the operation is Sqrt)" in str(error)
    assert len(error.samples) == 4


def test_a_gradient_that_the_step_function_spoils_names_the_module_before_it(make, data):
    error = failure(make(step_fn=lambda model, x, y: (model(x) * 0).sqrt().mean() + y.mean()), data)
    assert error.path in ("", "3")
    assert "the gradient that arrives at the output of this " in str(error)
    assert "(the operation is Sqrt)" in str(error)


def test_a_loss_that_is_not_finite_though_every_module_is_names_the_step_function(make, data):
    error = failure(make(step_fn=lambda model, x, y: model(x).mean() / 0), data)
    assert error.path == ""
    assert "every module returned finite values, but the loss is not finite" in str(error)


def test_a_mask_of_minus_infinity_is_not_taken_for_the_cause():
    class Mask(nn.Module):
        def forward(self, x):
            return torch.full((3,), -torch.inf)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.mask, self.bad, self.line = Mask(), Explodes(), nn.Linear(3, 3)

        def forward(self, x):
            return self.bad(self.line(x)).softmax(1) + self.mask(x).exp()

    model = Model()
    nn.init.zeros_(model.line.weight)
    nn.init.constant_(model.line.bias, 100.0)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda model, x: model(x).sum())
    assert find_non_finite(step, (torch.ones(2, 3),)).path == "bad"


def test_the_report_says_if_everything_is_finite_the_second_time(make, data):
    def step_fn(model, x, y):
        calls.append(True)
        return nn.functional.mse_loss(model(x), y) * (NAN if len(calls) == 3 else 1.0)

    calls = []
    error = failure(make(step_fn=step_fn, dry_pass=False), data)
    assert "When the batch is run again, everything is finite. It is batch 3 of epoch 1, with" in str(error)
    assert len(calls) == 3, "the search leaves no trace"


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("keeps", [True, False])
def test_the_batch_within_a_window_is_named_and_read_again_if_it_was_not_kept(
    make, data, monkeypatch, accumulate, keeps
):
    if not keeps:
        monkeypatch.setattr(RecentBatches, "add", add_without_batch)
    trainer = make(graph(Explodes()), accumulate=accumulate)
    error = failure(trainer, with_sample(data, 7, 100.0))
    assert error.path == "encoder.bad"
    assert 7 in error.samples
    assert "not finite: sample 7." in str(error)


original_add = RecentBatches.add


def add_without_batch(self, batch):
    """Do as on a GPU, where the report comes late and no batch is kept."""
    self._keeps = False
    original_add(self, batch)


def test_batches_that_cannot_be_read_again_are_counted(make, data, monkeypatch):
    monkeypatch.setattr(RecentBatches, "add", add_without_batch)
    batches = [(x, y) for x, y in zip(with_sample(data, 7, 100.0)[0].split(4), data[1].split(4))]
    error = failure(make(graph(Explodes()), accumulate=5), batches, batch_size=None)
    assert "It was one of the batches 1 to 5 of epoch 1." in str(error)


def test_the_search_leaves_no_trace(make, data, monkeypatch):
    def run(is_searched):
        if not is_searched:
            monkeypatch.setattr(cause, "find_non_finite", lambda *_: None)
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), Explodes(), nn.Linear(3, 1)
        )
        trainer = make(model)
        failure(trainer, with_sample(data, 3, 100.0))
        grads = [parameter.grad for parameter in model.parameters()]
        return model.state_dict(), torch.rand(3), trainer.train_step.steps, grads

    searched, plain = run(True), run(False)
    assert searched[2] == plain[2]
    for one, other in zip(searched[3], plain[3]):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one.nan_to_num(), other.nan_to_num())
    for one, other in zip((*searched[0].values(), searched[1]), (*plain[0].values(), plain[1])):
        assert torch.equal(one, other)


def test_a_loop_with_batches_of_its_own_gets_the_module_too(make, data):
    trainer = make(graph(Explodes()))
    with pytest.raises(NotFiniteError) as caught:
        trainer.step(with_sample(data, 3, 100.0)[0], data[1])
    assert caught.value.path == "encoder.bad"
    assert caught.value.samples == ()
    assert "It is batch 1 of epoch 1; not finite: rows 3." in str(caught.value)


def test_a_rollback_is_reported_with_the_module(make, data, tmp_path):
    settings = {"checkpoint_dir": tmp_path, "save_every_steps": 1, "nan": "rollback", "monitor": None}
    trainer = make(graph(Explodes()), **settings, seed=1)
    trainer.fit(with_sample(data, 7, 100.0), epochs=1, batch_size=4)
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    (message,) = [
        line["data"]["message"] for line in lines if "Rolled back" in line["data"].get("message", "")
    ]
    assert message.startswith("at 'encoder.bad': the loss or the gradients were not finite")
    assert "not finite: sample 7" in message


def test_a_target_that_is_not_finite_is_named_with_its_sample(make, data):
    targets = data[1].clone()
    targets[3] = torch.nan
    with pytest.raises(NotFiniteError, match="part 1 of the batch is not finite; every module") as caught:
        make().fit((data[0], targets), epochs=1, batch_size=5)
    assert "not finite: sample 3. Remove or repair these samples." in str(caught.value)
    assert "learning rate" not in str(caught.value)


def test_a_masked_target_whose_gradient_is_not_finite_is_named(make, data):
    targets = data[1].clone()
    targets[3] = torch.nan

    def masked(model, x, y):
        # The gradient of the branch that is not chosen is NaN.
        return torch.where(y.isnan(), 0.0, (model(x) - y).square() * y.sqrt().abs()).mean()

    with pytest.raises(NotFiniteError, match="part 1 of the batch is not finite"):
        make(step_fn=masked).fit((data[0], targets.abs()), epochs=1, batch_size=5)


def test_a_parameter_that_was_never_finite_is_not_called_good(make, data):
    trainer = make()
    with torch.no_grad():
        trainer.model[0].weight[0, 0] = torch.nan
    with pytest.raises(NotFiniteError) as caught:
        trainer.fit(data, epochs=1, batch_size=5)
    assert caught.value.path == "0.weight"
    assert "Those updates were skipped. When" in str(caught.value)
    assert "It was already not finite before the first update: check how it is initialized" in str(
        caught.value
    )
    assert "nan='skip'" not in str(caught.value)


def test_a_batch_without_targets_is_explained_as_a_mean_over_zero_targets(make, data):
    def loss_of(model, x, y):
        return nn.functional.cross_entropy(model(x), y)

    x, targets = data[0][:12], torch.arange(12) % 3
    targets[4:8] = -100
    error = failure(make(nn.Linear(3, 3), loss_of), Loader((x, targets), 4, shuffle=False), batch_size=None)
    assert "All targets of this batch are -100" in str(error)
    assert "mean over zero targets" in str(error)
    assert "learning rate" not in str(error)


def test_some_ignored_targets_do_not_explain_a_value_that_is_not_finite(make, data):
    def loss_of(model, x, y):
        return nn.functional.cross_entropy(model(x), y) / (y != 2).all()

    x, targets = data[0][:12], torch.tensor([-100, 0, 1, -100] * 2 + [-100, 2, 2, -100])
    error = failure(make(nn.Linear(3, 3), loss_of), Loader((x, targets), 4, shuffle=False), batch_size=None)
    assert "Lower the learning rate or clip the gradients." in str(error)
