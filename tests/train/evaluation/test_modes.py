"""Training and evaluation call `train()` and `eval()` as a plain loop does."""

import pytest
import torch
from torch import nn

from flodl import Loader


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.02)


class MergedInEval(nn.Linear):
    """A linear layer with LoRA: `eval()` merges its two factors into the weight, `train()` takes them out."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.weight.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.zeros(outputs, 2))
        self.is_merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.is_merged:
            self.weight.data += (-1 if mode else 1) * (self.up @ self.down).detach()
            self.is_merged = not mode
        return self

    def forward(self, x):
        out = nn.functional.linear(x, self.weight, self.bias)
        return out if self.is_merged else out + x @ self.down.T @ self.up.T


class FrozenStatistics(nn.Module):
    """A model that keeps its batch norm in evaluation mode by overriding `train()`."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.head(self.norm(self.body(x)))


def lora():
    torch.manual_seed(0)
    return nn.Sequential(MergedInEval(3, 8), nn.Tanh(), MergedInEval(8, 1))


def losses_of(result):
    return [row["loss"] for row in result.history]


def losses_of_plain_loop(data, *, epochs):
    model, found = lora(), []
    optimizer = sgd([p for p in model.parameters() if p.requires_grad])
    loader = Loader(data, 5, seed=0)
    for _ in range(epochs):
        model.train()
        total = 0.0
        for x, y in loader:
            loss = loss_of(model, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(x)
        found.append(total / 20)
        model.eval()
    return found


def test_a_module_that_merges_weights_in_eval_trains_as_in_a_plain_loop(make, data):
    model = lora()
    result = make(model, optimizer=sgd, seed=0).fit(data, epochs=3, batch_size=5, eval_data=data)
    assert losses_of(result) == pytest.approx(losses_of_plain_loop(data, epochs=3), rel=1e-5)
    assert model.training
    assert not model[0].is_merged


def test_a_resumed_run_takes_merged_weights_out_before_it_loads(make, data, tmp_path):
    whole = make(lora(), optimizer=sgd, seed=0).fit(data, epochs=3, batch_size=5)
    make(lora(), optimizer=sgd, seed=0, checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=5)
    resumed = make(lora().eval(), optimizer=sgd, seed=0, checkpoint_dir=tmp_path).fit(
        data, epochs=3, batch_size=5
    )
    assert losses_of(resumed) == losses_of(whole)


def test_a_model_in_evaluation_mode_is_merged_again_after_fit(make, data):
    model = lora().eval()
    make(model, optimizer=sgd).fit(data, epochs=1, batch_size=5)
    assert not model.training
    assert model[0].is_merged


def test_fit_calls_a_train_that_keeps_batch_norm_in_evaluation_mode(make, data):
    model = FrozenStatistics()
    trainer = make(model)
    trainer.fit(data, epochs=2, batch_size=5, eval_data=data)
    assert not model.norm.training
    assert not model.norm.running_mean.any()


def test_fit_leaves_modules_in_evaluation_mode_that_the_program_set_so(make, data):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model[1].eval()
    make(model).fit(data, epochs=2, batch_size=5, eval_data=data)
    assert [module.training for module in model] == [True, False, True]
    assert not model[1].running_mean.any()


def test_find_lr_leaves_modules_in_evaluation_mode_too(make, data, capsys):
    def show(model, x, y):
        print([module.training for module in model])  # a list would be restored
        return loss_of(model, x, y)

    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model[1].eval()
    make(model, show).find_lr(data, 5, num_steps=10)
    assert capsys.readouterr().out.startswith("[True, False, True]")


class BodyAndHead(nn.Module):
    """A frozen body with batch norm and dropout, and a head with dropout."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).requires_grad_(False)
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(8, 1))

    def forward(self, x):
        return self.head(self.body(x))


def chosen():
    """A model whose body was set to evaluation mode, and whose head to training mode."""
    torch.manual_seed(0)
    model = BodyAndHead().eval()
    model.head.train()
    return model


def plain_losses(data, *, epochs):
    """Train the head in a plain loop that sets these modes again after each evaluation."""
    model, found = chosen(), []
    optimizer = sgd(model.head.parameters())
    torch.manual_seed(1)
    loader = Loader(data, 5, seed=0)
    for _ in range(epochs):
        model.head.train()
        total = 0.0
        for x, y in loader:
            loss = loss_of(model, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(x)
        found.append(total / 20)
        model.eval()
    return found


def chosen_trainer(make, **settings):
    model = chosen()
    trainer = make(model, optimizer=sgd(model.head.parameters()), seed=0, **settings)
    torch.manual_seed(1)
    return trainer


def has_chosen_modes(model):
    return {name for name, module in model.named_modules() if module.training} == {
        "head",
        "head.0",
        "head.1",
    } and not model.body[1].running_mean.any()


def test_fit_leaves_a_model_in_evaluation_mode_whose_head_is_in_training_mode(make, data):
    trainer = chosen_trainer(make)
    result = trainer.fit(data, epochs=3, batch_size=5, eval_data=data)
    assert losses_of(result) == pytest.approx(plain_losses(data, epochs=3), rel=1e-5)
    assert has_chosen_modes(trainer.model)


def test_a_loop_over_epoch_leaves_the_chosen_modes_also_after_an_evaluation(make, data):
    trainer = chosen_trainer(make)
    while trainer.epochs < 3:
        for batch in trainer.epoch(data, 5):
            trainer.step(batch)
        trainer.evaluate(data)
        assert has_chosen_modes(trainer.model)
    assert losses_of(trainer.result()) == pytest.approx(plain_losses(data, epochs=3), rel=1e-5)


def test_a_resumed_run_has_the_chosen_modes_and_the_same_numbers(make, data, tmp_path, capsys):
    chosen_trainer(make, checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=5)
    resumed = chosen_trainer(make, checkpoint_dir=tmp_path)
    result = resumed.fit(data, epochs=3, batch_size=5)
    assert losses_of(result) == pytest.approx(plain_losses(data, epochs=3), rel=1e-5)
    assert has_chosen_modes(resumed.model)
    assert "as it was saved" not in capsys.readouterr().err


def test_a_resumed_run_reports_modes_that_the_program_now_chooses_otherwise(make, data, tmp_path, capsys):
    chosen_trainer(make, checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=5)
    other = chosen_trainer(make, checkpoint_dir=tmp_path)
    other.model.train()
    other.fit(data, epochs=2, batch_size=5)
    assert (
        "body, body.0, body.1 and 1 more are in evaluation, as they were saved; this program has them in "
        "training" in capsys.readouterr().err
    )
    assert has_chosen_modes(other.model)


def test_a_resumed_run_reports_chosen_modes_after_a_start_in_evaluation_mode(make, data, tmp_path, capsys):
    first = chosen_trainer(make, checkpoint_dir=tmp_path)
    first.model.eval()
    first.fit(data, epochs=1, batch_size=5)
    chosen_trainer(make, checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=5)
    told = capsys.readouterr().err
    assert "in training, as they were saved; this program has them in evaluation" in told


def test_chosen_modes_are_noted_once_where_they_make_a_difference(make, data, capsys):
    chosen_trainer(make).fit(data, epochs=2, batch_size=5)
    told = capsys.readouterr()
    modes = "in evaluation mode and 'head' is in training mode, and both stay that way: 'body.1' (B"
    assert told.out.count(modes) == 1
    assert "call model.train() before the run" in told.out
    assert not told.err
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)).eval()
    model[1].train()
    make(model).fit(data, epochs=2, batch_size=5)
    assert "evaluation mode" not in capsys.readouterr().out


def test_find_lr_trains_a_copy_with_the_chosen_modes(make, data, capsys):
    def show(model, x, y):
        print(has_chosen_modes(model))
        return loss_of(model, x, y)

    model = chosen()
    optimizer = sgd(model.head.parameters())
    make(model, show, optimizer=optimizer).find_lr(data, 5, num_steps=10)
    assert set(capsys.readouterr().out.split()) == {"True"}


def test_a_model_that_is_in_evaluation_mode_as_a_whole_is_trained_as_a_whole(make, data):
    trainer = chosen_trainer(make)
    trainer.model.eval()
    trainer.fit(data, epochs=1, batch_size=5)
    assert trainer.model.body[1].running_mean.any()
    assert not any(module.training for module in trainer.model.modules())
