"""Mistakes are found before anything is trained, and looking for them changes nothing."""

import random
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flodl import FlowBuilder, Loader, Monitor, TrainStep
from flodl.checkpoint import best, last, list_bundles, read_bundle
from flodl.core import CheckpointError, StepError, TrainError
from flodl.monitor import read
from flodl.optim import CosineScheduler, apply
from flodl.train import EarlyStopping, ReduceOnPlateau

from ..same_state import same


class Mean:
    """A metric object with a state of its own."""

    def __init__(self):
        self.values, self.num_updates = [], 0

    def reset(self):
        self.values = []

    def update(self, predictions, targets):
        self.values.append((predictions - targets).abs().mean())
        self.num_updates += 1

    def compute(self):
        return torch.stack(self.values).mean()


class Wrong(Mean):
    def __init__(self, result):
        super().__init__()
        self.result = result

    def compute(self):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def with_accuracy(model, x, y):
    loss = nn.functional.mse_loss(model(x), y)
    return loss, {"accuracy": (loss < 1).float()}


def weights_of(trainer):
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def refused(trainer, data, *, words, error=TrainError, **settings):
    """Assert that a run is refused before anything is trained or written."""
    before, settings = weights_of(trainer), {"epochs": 3, "batch_size": 8, **settings}
    with pytest.raises(error, match=words):
        trainer.fit(data, **settings)
    assert trainer.updates == trainer.epochs == 0
    assert all(map(torch.equal, before, weights_of(trainer)))
    assert trainer.run_dir is None or not trainer.run_dir.exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"hooks": [EarlyStopping("eval_acuracy")]},
            r"EarlyStopping watches 'eval_acuracy', which this run does not have\. Did you mean 'eval_acc",
        ),
        ({"hooks": [EarlyStopping("acc")]}, "EarlyStopping watches 'acc', which this run does not have"),
        ({"hooks": [ReduceOnPlateau("eval_los")]}, "ReduceOnPlateau watches 'eval_los'"),
        (
            {"keep": best("eval_loss_") | last(1)},
            r"keep=best\('eval_loss_', 1, mode='min'\) \| last\(1\) wat",
        ),
    ],
)
def test_an_unknown_metric_name_raises_with_a_suggestion_before_anything_is_trained(
    make, data, tmp_path, settings, words
):
    trainer = make(step_fn=with_accuracy, checkpoint_dir=tmp_path / "run", monitor=None, **settings)
    refused(trainer, data, words=words, eval_data=data)


def test_a_metric_of_an_evaluation_that_there_is_none_of_is_refused(make, data):
    words = r"EarlyStopping watches 'eval_loss', which this run does not have\. Pass eval_data to have it\."
    refused(make(hooks=[EarlyStopping()]), data, words=words)


def test_a_hook_of_the_user_may_list_what_it_watches(make, data):
    class Mine:
        watches = "eval_f1"

        def on_epoch_end(self, metrics):
            print(metrics["eval_f1"])

    refused(make(hooks=[Mine()]), data, words="Mine watches 'eval_f1'", eval_data=data)


def test_a_metric_that_a_hook_adds_may_be_watched(make, data):
    class Adds:
        def on_evaluate_end(self, metrics):
            metrics["error"] = 1 - metrics["accuracy"]

    hooks = [Adds(), EarlyStopping("eval_error", patience=9)]
    result = make(step_fn=with_accuracy, hooks=hooks).fit(data, epochs=1, batch_size=8, eval_data=data)
    assert "eval_error" in result.metrics


def test_a_metric_that_does_not_fit_the_model_is_named_with_the_shapes(make, data):
    class Other:
        def reset(self):
            self.total = torch.zeros(4)

        def update(self, predictions, targets):
            self.total += predictions.expand(-1, 3).sum(0)

        def compute(self):
            return self.total.sum().item()

    words = (
        r"the metric 'mine' \(Other\) cannot be updated with the predictions float32 \[.*, 1\] and "
        r"the targets float32 \[.*, 1\]: RuntimeError: .*3.* Check that it was created for this model"
    )
    refused(make(metrics={"mine": Other()}), data, words=words, eval_data=data)


@pytest.mark.parametrize("dry_pass", [True, False])
def test_a_loop_may_leave_out_the_evaluation_of_its_first_epochs(make, data, tmp_path, dry_pass):
    hooks = [EarlyStopping("eval_loss", patience=1), ReduceOnPlateau("eval_loss")]
    keep = best("eval_loss") | last(1)
    trainer = make(hooks=hooks, dry_pass=dry_pass, checkpoint_dir=tmp_path, keep=keep, monitor=None)
    with trainer.running(4):
        while trainer.epochs < 4 and not trainer.stop_reason:
            eval_data = data if trainer.epochs >= 2 else None
            for batch in trainer.epoch(data, 10, eval_data=eval_data):
                trainer.step(batch)
    assert ["eval_loss" in row for row in trainer.history] == [False, False, True, True]
    notes = [entry.event.data["message"] for entry in read(tmp_path) if entry.event.kind == "alert"]
    waiting = [note for note in notes if "an epoch counts only if trainer.epoch gets eval_data" in note]
    assert len(waiting) == (3 if dry_pass else 0)


def test_a_loop_that_leaves_out_an_evaluation_still_names_a_misspelled_metric(make, data):
    trainer = make(hooks=[EarlyStopping("los")])
    with pytest.raises(TrainError, match=r"EarlyStopping watches 'los'.*Did you mean 'loss'"):
        next(iter(trainer.epoch(data, 10)))


def test_without_a_dry_pass_a_second_fit_reports_that_a_hook_waits_for_an_evaluation(make, data, capsys):
    trainer = make(hooks=[EarlyStopping("eval_loss", patience=9)], dry_pass=False, monitor=None)
    trainer.fit(data, epochs=1, batch_size=10, eval_data=data)
    capsys.readouterr()
    trainer.fit(data, epochs=3, batch_size=10)
    shown = "".join(capsys.readouterr())
    assert shown.count("EarlyStopping watches 'eval_loss', and there is no eval_data") == 1


def test_without_a_dry_pass_a_metric_of_a_missing_evaluation_is_refused_too(make, data):
    words = r"EarlyStopping watches 'eval_loss', which this run does not have\. Pass eval_data to have it\."
    refused(make(hooks=[EarlyStopping()], dry_pass=False), data, words=words)


def test_the_names_of_the_average_are_known(make, data):
    trainer = make(ema=0.9, hooks=[EarlyStopping("eval_ema_loss")])
    assert trainer.fit(data, epochs=1, batch_size=8, eval_data=data).status == "finished"


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (torch.ones(3, 2), "the metric 'mine' returns a tensor of shape"),
        ("0.5", "the metric 'mine' returns '0.5'"),
        (None, "the metric 'mine' returns None"),
    ],
)
def test_a_metric_of_the_wrong_shape_raises_before_anything_is_trained(make, data, result, words):
    refused(make(metrics={"mine": Wrong(result)}), data, words=words, eval_data=data)


def test_a_metric_that_needs_more_than_one_batch_is_left_to_the_evaluation(make, data):
    class Needs(Mean):
        def compute(self):
            if len(self.values) < 3:
                raise ValueError("only one batch")
            return super().compute()

    result = make(metrics={"mine": Needs()}).fit(data, epochs=1, batch_size=8, eval_data=data)
    assert "eval_mine" in result.metrics


def test_a_metric_and_a_value_with_the_same_name_are_refused_before_anything_is_trained(make, data):
    trainer = make(step_fn=with_accuracy, metrics={"accuracy": Mean()})
    refused(trainer, data, words="metrics= has a Mean of that name", eval_data=data)


def test_an_evaluation_that_fails_is_found_before_anything_is_trained(make, data):
    def step_fn(model, x, y):
        if not model.training:
            raise LookupError("only in an evaluation")
        return nn.functional.mse_loss(model(x), y)

    trainer = make(step_fn=step_fn)
    refused(trainer, data, words="only in an evaluation", error=LookupError, eval_data=data)
    refused(make(), data, words="mat1", error=RuntimeError, eval_data=(data[1], data[0]))


def test_a_named_value_with_many_numbers_is_found_before_anything_is_trained(make, data):
    def step_fn(model, x, y):
        errors = (model(x) - y).square()
        return errors.mean(), {"errors": errors}

    refused(make(step_fn=step_fn), data, words=r"returns 'errors' with shape \(8, 1\)")


def test_a_state_that_cannot_be_saved_is_found_before_anything_is_trained(make, data, tmp_path):
    class Model(nn.Linear):
        def get_extra_state(self):
            return {"seen": {1, 2}}

        def set_extra_state(self, state):
            pass

    trainer = make(Model(3, 1), checkpoint_dir=tmp_path / "run")
    words = r"at 'model._extra_state.seen': a set cannot be saved"
    refused(trainer, data, words=words, error=CheckpointError)
    assert make(Model(3, 1)).fit(data, epochs=1, batch_size=8).status == "finished", "nothing is saved"


def test_a_refused_run_leaves_the_record_of_a_finished_one(make, data, tmp_path):
    make(checkpoint_dir=tmp_path, monitor=None).fit(data, epochs=2, batch_size=8, eval_data=data)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    trainer = make(checkpoint_dir=tmp_path, monitor=None, hooks=[EarlyStopping("eval_acuracy")])
    with pytest.raises(TrainError, match="EarlyStopping watches"):
        trainer.fit(data, epochs=3, batch_size=8, eval_data=data)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_dry_pass_can_be_turned_off(make, data):
    calls = []

    def step_fn(model, x, y):
        calls.append(model.training)
        return nn.functional.mse_loss(model(x), y)

    trainer = make(step_fn=step_fn, dry_pass=False, hooks=[EarlyStopping("eval_los")])
    with pytest.raises(TrainError, match="EarlyStopping watches 'eval_los'"):
        trainer.fit(data, epochs=1, batch_size=8, eval_data=data)
    assert trainer.updates == 3
    assert calls == [True] * 3 + [False] * 3


class Busy(nn.Module):
    """A model whose forward changes all kinds of state, in training and in evaluation."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.utils.spectral_norm(nn.Linear(8, 8))
        )
        self.head = nn.Linear(8, 1)
        self.register_buffer("hidden", torch.zeros(8))
        self.register_buffer("large", torch.zeros(300_000))
        self.calls, self.seen, self.last = 0, [], None
        self.generator = torch.Generator().manual_seed(7)

    def forward(self, x):
        self.calls += 1
        self.seen.append(len(x))
        noise = torch.randn(x.shape, generator=self.generator) * 0.1
        out = self.layers(x + noise) + self.hidden
        self.hidden = (0.9 * self.hidden + 0.1 * out.detach().mean(0)).clone()
        self.large += out.detach().mean()
        self.last = out
        with torch.no_grad():
            self.head.weight.mul_(1 + 1e-3 * random.random())
        return self.head(out)


COUNTS = {"calls": 0}


def busy_run(data, folder, *, dry_pass, make, ema, accumulate, batches, own_loop=False):
    """Train a busy model, and return everything that a run leaves."""
    random.seed(1)
    np.random.seed(2)
    model, memory, told = Busy(), [], []
    COUNTS["calls"] = 0
    torch.manual_seed(3)

    def step_fn(model, x, y):
        COUNTS["calls"] += 1
        memory.append(float(np.random.rand()))
        x.mul_(1.0 + memory[-1] * 1e-3)
        loss = nn.functional.mse_loss(model(x), y)
        return loss, {"calls": COUNTS["calls"], "random": memory[-1]}

    class Told:
        def on_step_end(self, step, loss):
            told.append(("step", step, loss.item()))

        def on_evaluate_end(self, metrics):
            told.append(("evaluation", dict(metrics)))

        def on_epoch_end(self, epoch, metrics):
            told.append(("epoch", epoch, dict(metrics)))

    metric = Mean()
    trainer = make(
        model,
        step_fn,
        dry_pass=dry_pass,
        ema=ema,
        accumulate=accumulate,
        metrics={"mae": metric},
        hooks=[Told()],
        checkpoint_dir=folder,
        keep=last(2) | best("eval_mae"),
        monitor=None,
    )
    train, evaluated = batches(data)
    if own_loop:
        while trainer.epochs < 2:
            for batch in trainer.epoch(train, eval_data=evaluated):
                trainer.step(batch)
    else:
        trainer.fit(train, epochs=2, eval_data=evaluated)
    report = trainer.train_step.report()
    files = {} if own_loop else {b.step: read_bundle(b) for b in list_bundles(folder / "bundles")}
    return {
        "history": trainer.history,
        "told": told,
        "memory": memory,
        "calls": (COUNTS["calls"], model.calls, model.seen, metric.num_updates),
        "state": model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "rng": (random.random(), np.random.rand(), torch.rand(1), model.generator.get_state()),
        "report": (report.tier, report.reason, report.steps, [event.what for event in report.events]),
        "files": files,
    }


def as_tuples(data):
    batches = [(x.clone(), y.clone()) for x, y in zip(data[0].split(6), data[1].split(6))]
    return batches, batches[:2]


def as_loaders(data):
    return Loader(data, 6, seed=4), Loader(data, 7, shuffle=False)


def as_torch_loaders(data):
    return DataLoader(TensorDataset(*data), 6, shuffle=True), DataLoader(TensorDataset(*data), 6)


@pytest.mark.parametrize(
    ("batches", "ema", "accumulate", "own_loop"),
    [
        (as_tuples, None, 1, False),
        (as_loaders, 0.9, 2, False),
        (as_loaders, None, 1, True),
        (as_torch_loaders, None, 1, False),
    ],
)
def test_a_run_with_a_dry_pass_is_the_same_bit_for_bit(
    make, data, tmp_path, batches, ema, accumulate, own_loop
):
    settings = {"make": make, "ema": ema, "accumulate": accumulate, "batches": batches, "own_loop": own_loop}
    results = [busy_run(data, tmp_path / str(dry), dry_pass=dry, **settings) for dry in (False, True)]
    for result in results:
        for parts in result["files"].values():
            parts["config"].pop("dry_pass")
            parts["trainer"].pop("run")  # each run has its own id
    for key in results[0]:
        assert same(results[0][key], results[1][key]), key


def test_values_that_a_graph_carries_and_records_are_left(make, data):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(3, 3)

        def forward(self, x, before=None):
            return self.line(x) + (0 if before is None else 0.1 * before)

    def graph():
        torch.manual_seed(0)
        return FlowBuilder(Counter()).using("before").tag("before").through(nn.Linear(3, 1)).build()

    def step_fn(model, x, y):
        loss = nn.functional.mse_loss(model(x), y)
        model.record("mine", loss)
        model.end_step()
        return loss

    found = []
    for dry_pass in (False, True):
        trainer = make(graph(), step_fn, dry_pass=dry_pass)
        history = trainer.fit(data, epochs=2, batch_size=10, eval_data=data).history
        found.append((history, trainer.model.trend("mine").values, trainer.model.state_dict()))
    assert same(found[0], found[1])


def test_an_iterator_still_delivers_the_batch_that_the_dry_pass_used(make, data):
    def batches():
        return iter([(x.clone(), y.clone()) for x, y in zip(data[0].split(6), data[1].split(6))])

    def of_batches(trainer):
        return trainer.fit(Loader(batches(), None), epochs=1, eval_data=Loader(batches(), None)).history

    def of_samples(trainer):
        samples = zip(*data), zip(*data)
        return trainer.fit(samples[0], epochs=1, batch_size=6, eval_data=samples[1]).history

    for fit in (of_batches, of_samples):
        assert fit(make(dry_pass=True)) == fit(make(dry_pass=False))


def test_what_cannot_be_undone_is_not_run_in_advance(make, data):
    numbers = iter(range(1000))

    def step_fn(model, x, y):
        return nn.functional.mse_loss(model(x), y) + next(numbers) * 0.0

    make(step_fn=step_fn).fit(data, epochs=1, batch_size=10, eval_data=data)
    assert next(numbers) == 4
    lazy = nn.Sequential(nn.LazyLinear(1))
    assert make(lazy).fit(data, epochs=1, batch_size=10).steps == 2


def critic_loss(critic, x):
    return critic(x).square().mean()


def by_hand(update):
    """Return an update of a critic by its own optimizer, followed by `update(critic, optimizer)`."""

    def prepare(critic, optimizer):
        after = update(critic, optimizer)

        def run(x):
            optimizer.zero_grad()
            critic_loss(critic, x).backward()
            optimizer.step()
            after()

        return run

    return prepare


def with_torch_schedulers(critic, optimizer):
    first = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: 1 / (1 + at))
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)

    def after():
        first.step()
        plateau.step(1.0)

    return after


def with_a_flodl_schedule(critic, optimizer):
    return apply(CosineScheduler(0.1, 0.001, 12), optimizer).step


def with_an_average(critic, optimizer):
    average = torch.optim.swa_utils.AveragedModel(critic)

    def after():
        average.update_parameters(critic)
        with torch.no_grad():
            critic.weight.lerp_(average.module.weight, 0.5)

    return after


def with_a_step(critic, optimizer):
    return TrainStep(critic, optimizer, critic_loss)


@pytest.mark.parametrize(
    "prepare",
    [by_hand(with_torch_schedulers), by_hand(with_a_flodl_schedule), by_hand(with_an_average), with_a_step],
)
def test_a_second_optimizer_in_the_step_function_makes_the_same_updates(make, data, prepare):
    def losses(dry_pass):
        torch.manual_seed(0)
        critic = nn.Linear(3, 1)
        update = prepare(critic, torch.optim.SGD(critic.parameters(), lr=0.1, momentum=0.9))

        def step_fn(model, x, y):
            update(x)
            return nn.functional.mse_loss(model(x), y) + critic_loss(critic, x).detach()

        trainer = make(step_fn=step_fn, dry_pass=dry_pass)
        return trainer.fit(data, epochs=2, batch_size=6).history, critic.weight

    assert same(losses(True), losses(False))


def test_a_search_for_a_learning_rate_leaves_another_step_as_it_is(make, data):
    critic = nn.Linear(3, 1)
    step = TrainStep(critic, torch.optim.SGD(critic.parameters(), lr=0.1), critic_loss)
    trainer = make(step_fn=lambda model, x, y: nn.functional.mse_loss(model(x), y) + 0 * step(x))
    with pytest.raises(StepError, match="calls another TrainStep, whose update cannot be undone here"):
        trainer.find_lr(data, batch_size=6)
    assert step.updates == 0


def test_a_monitor_sees_nothing_of_the_dry_pass(make, data):
    events = []
    with Monitor(1, console=False, views=[events.append], resources=False, step_rate=None) as monitor:
        make(monitor=monitor).fit(data, epochs=1, batch_size=10, eval_data=data)
    assert [event.data["step"] for event in events if event.kind == "metrics"] == [1, 2]
    assert sum(event.kind == "epoch" for event in events) == 1


def test_what_a_step_function_logs_stops_or_sets_is_undone(make, data):
    events = []

    def step_fn(model, x, y):
        loss = nn.functional.mse_loss(model(x), y)
        if model.training:
            monitor.log_step(trainer.updates, {"mine": 1.0})
            trainer.optimizer.param_groups[0]["lr"] *= 0.5
            if trainer.updates == 1:
                trainer.stop("enough")
        return loss

    views = {"console": False, "views": [events.append], "resources": False, "step_rate": None}
    with Monitor(1, **views) as monitor:
        trainer = make(step_fn=step_fn, monitor=monitor, log_every=None)
        trainer.fit(data, epochs=1, batch_size=5)
    logged = [event.data["step"] for event in events if event.kind == "metrics"]
    assert logged == [0, 1]
    assert trainer.optimizer.param_groups[0]["lr"] == 0.1 * 0.5**2


def test_an_evaluation_with_workers_is_read_again(make, data):
    loader = DataLoader(TensorDataset(*data), 6, num_workers=1)
    found = [make(dry_pass=dry).fit(data, epochs=1, batch_size=8, eval_data=loader) for dry in (True, False)]
    assert found[0].history == found[1].history


def test_the_state_of_an_optimizer_that_cannot_be_saved_is_found_at_its_first_update(make, data, tmp_path):
    class Odd(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["seen"] = {1, 2}
            return super().step(closure)

    trainer = make(optimizer=lambda groups: Odd(groups, lr=0.1), checkpoint_dir=tmp_path)
    with pytest.raises(CheckpointError, match=r"at 'optimizer.state.0.seen': a set cannot be saved"):
        trainer.fit(data, epochs=3, batch_size=8)
    assert trainer.updates == 1


def test_limit_runs_that_number_of_batches_of_everything(make, data, tmp_path):
    calls = []

    def step_fn(model, x, y):
        calls.append((model.training, len(x)))
        return nn.functional.mse_loss(model(x), y)

    trainer = make(step_fn=step_fn, checkpoint_dir=tmp_path)
    result = trainer.fit(data, epochs=2, batch_size=3, eval_data=data, limit=2)
    assert calls == ([(True, 3)] * 2 + [(False, 3)] * 2) * 2
    assert (result.steps, len(result.history), result.status) == (4, 2, "finished")
    assert [bundle.step for bundle in list_bundles(tmp_path / "bundles")] == [2, 4]


def test_limited_epochs_have_an_order_each_and_resume_in_it(make, data, tmp_path):
    class Seen:
        def __init__(self, stop_at=None):
            self.samples, self.stop_at = [], stop_at

        def on_step_end(self, trainer, batch, step):
            self.samples.append(batch[0][:, 0].tolist())
            if step == self.stop_at:
                trainer.stop("enough")

    whole, first, second = Seen(), Seen(stop_at=4), Seen()
    expected = make(hooks=[whole]).fit(data, epochs=3, batch_size=3, limit=3)
    make(hooks=[first], checkpoint_dir=tmp_path).fit(data, epochs=3, batch_size=3, limit=3)
    result = make(hooks=[second], checkpoint_dir=tmp_path).fit(data, epochs=3, batch_size=3, limit=3)
    assert whole.samples[:3] != whole.samples[3:6]
    assert first.samples + second.samples == whole.samples
    assert result.history == expected.history


def test_a_limit_beyond_the_data_changes_nothing(make, data):
    limited = make().fit(data, epochs=2, batch_size=8, eval_data=data, limit=100)
    assert limited.history == make().fit(data, epochs=2, batch_size=8, eval_data=data).history


def test_an_iterator_is_read_up_to_its_limit(make, data):
    batches = iter([data] * 5)
    assert make().fit(batches, epochs=1, limit=2).steps == 2
    with pytest.raises(TrainError, match=r"dry_pass='no'\. Use True or False"):
        make(dry_pass="no")
    with pytest.raises(TrainError, match=r"limit=0\. Use a whole number of batches from 1 up"):
        make().fit(data, epochs=1, batch_size=8, limit=0)


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize(("before", "after"), [(2, None), (None, 2), (2, 3)])
def test_a_limited_run_is_not_continued_as_a_whole_one(make, data, tmp_path, before, after, epochs):
    trainer = make(checkpoint_dir=tmp_path, monitor=None)
    trainer.fit(data, epochs=1, batch_size=3, limit=before)
    content = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for one in (trainer, make(checkpoint_dir=tmp_path, monitor=None)):
        with pytest.raises(TrainError, match=r"this run was trained with .* and would be continued"):
            one.fit(data, epochs=epochs, batch_size=3, limit=after)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == content


def test_an_error_of_the_step_function_is_reported_with_the_training_batch(make, data):
    trainer = make(step_fn=lambda model, x, y: nn.functional.cross_entropy(model(x), y[:, 0]))
    with pytest.raises(StepError, match=r"the batch is \(float32 \[8, 3\]") as told:
        trainer.fit(data, epochs=1, batch_size=8, eval_data=data)
    assert "evaluation data" not in str(told.value)


def test_an_iterator_whose_epoch_was_ended_by_a_limit_has_no_second_one(make, data):
    x, y = data
    batches = zip(x.split(8), y.split(8))
    trainer = make()
    for batch in trainer.epoch(batches, limit=2):
        trainer.step(*batch)
    with pytest.raises(TrainError, match="an iterator has only one epoch"):
        next(iter(trainer.epoch(batches, limit=2)))
    assert len(trainer.history) == 1


GRAPHS = []  # references to the autograd graphs of all forward passes


class Held(torch.autograd.Function):
    """Lets a test see how long the autograd graph of a forward pass is kept."""

    @staticmethod
    def forward(ctx, x):
        ctx.held = torch.nn.Identity()
        GRAPHS.append(weakref.ref(ctx.held))
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_the_evaluation_does_not_find_the_activations_of_training_in_memory(make, data):
    GRAPHS.clear()

    def with_square(model, x, y):
        if not model.training:
            assert not any(one() for one in GRAPHS)
            return nn.functional.mse_loss(model(x), y)
        output = Held.apply(model(x))
        return nn.functional.mse_loss(output, y), {"square": output.square().mean()}

    make(step_fn=with_square).fit(data, epochs=1, batch_size=8, eval_data=data)
    assert GRAPHS


def test_samples_that_a_recurrent_module_reads_as_time_steps_are_reported_once(make, capsys):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(3, 1)

        def forward(self, x):
            return self.gru(x)[0][:, -1, 0]

    make(Last()).fit((torch.randn(20, 5, 3), torch.randn(20)), epochs=2, batch_size=10)
    assert capsys.readouterr().err.count("it reads samples as time steps of each other") == 1
