"""Hooks take the arguments they need, and can control the training."""

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, Loader
from flodl.checkpoint import list_bundles
from flodl.core import CheckpointError, MetricError, PathError, TrainError
from flodl.monitor import read
from flodl.train import ClassF1, EarlyStopping, Phase, ReduceOnPlateau


class Everything:
    """Records every hook call with its arguments."""

    def __init__(self):
        self.calls = []

    def on_start(self, **arguments):
        self.calls.append(("on_start", sorted(arguments)))

    def on_resume(self, **arguments):
        self.calls.append(("on_resume", sorted(arguments)))

    def on_epoch_start(self, **arguments):
        self.calls.append(("on_epoch_start", sorted(arguments)))

    def on_step_end(self, **arguments):
        self.calls.append(("on_step_end", sorted(arguments)))

    def on_evaluate_end(self, **arguments):
        self.calls.append(("on_evaluate_end", sorted(arguments)))

    def on_epoch_end(self, **arguments):
        self.calls.append(("on_epoch_end", sorted(arguments)))

    def on_save(self, **arguments):
        self.calls.append(("on_save", sorted(arguments)))

    def on_end(self, **arguments):
        self.calls.append(("on_end", sorted(arguments)))


def test_every_hook_is_called_in_order_with_its_arguments(make, data, tmp_path):
    hook = Everything()
    make(hooks=[hook], checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=10, eval_data=data)
    assert hook.calls == [
        ("on_start", ["trainer"]),
        ("on_epoch_start", ["epoch", "trainer"]),
        ("on_step_end", ["batch", "epoch", "loss", "step", "trainer"]),
        ("on_step_end", ["batch", "epoch", "loss", "step", "trainer"]),
        ("on_evaluate_end", ["epoch", "metrics", "trainer"]),
        ("on_epoch_end", ["epoch", "metrics", "trainer"]),
        ("on_save", ["metrics", "path", "step", "trainer"]),
        ("on_end", ["result", "trainer"]),
    ]
    again = Everything()
    make(hooks=[again], checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=10, eval_data=data)
    assert again.calls == [
        ("on_start", ["trainer"]),
        ("on_resume", ["epoch", "own_folder", "trainer"]),
        ("on_end", ["result", "trainer"]),
    ]


def test_a_hook_takes_any_subset_of_its_arguments(make, data):
    seen = []

    class Part:
        def on_epoch_end(self, metrics, epoch, mine=3):
            seen.append((epoch, sorted(metrics), mine))

        def on_end(self):
            seen.append("end")

    def on_step_end(loss, step):
        seen.append((step, loss.shape))

    make(hooks=[Part(), on_step_end]).fit(data, epochs=1, batch_size=20)
    assert seen == [(1, torch.Size([])), (0, ["loss", "lr"], 3), "end"]


def misnamed(step):
    """A function whose name is not that of a hook."""


class Misspelt:
    def on_epoch_ended(self, metrics):
        """A method whose name is not that of a hook."""


class Greedy:
    def on_epoch_end(self, metric):
        """An argument that the hook does not have."""


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (misnamed, "'misnamed' does not implement any trainer hook"),
        (Misspelt(), "'Misspelt' does not implement any trainer hook.*Did you mean 'on_epoch_end'"),
        (Greedy(), "on_epoch_end has no argument 'metric'. Did you mean 'metrics'"),
        (3, "'int' does not implement any trainer hook. Hooks: on_start"),
    ],
)
def test_a_hook_that_would_never_be_called_is_rejected(make, hook, words):
    with pytest.raises(TrainError, match=words):
        make(hooks=[hook])


def test_early_stopping_stops_with_a_reason(make, data):
    values = iter([3.0, 2.0, 2.5, 2.1, 1.0])

    class Fixed:
        def on_epoch_end(self, metrics):
            metrics["made"] = next(values)

    trainer = make(hooks=[Fixed(), EarlyStopping("made", patience=2)])
    result = trainer.fit(data, epochs=9, batch_size=20)
    assert (result.status, len(result.history)) == ("stopped", 4)
    assert result.reason == "made has not improved for 2 epochs (best 2; lower is better)"


def test_a_second_fit_after_early_stopping_continues_its_count_and_says_the_real_one(make, data):
    def on_epoch_end(metrics, epoch):
        metrics["made"] = 1.0 if epoch < 4 else 0.5 if epoch == 4 else 0.6

    trainer = make(hooks=[on_epoch_end, EarlyStopping("made", patience=2)])
    results = [trainer.fit(data, epochs=9, batch_size=20) for _ in range(3)]
    assert [len(result.history) for result in results] == [3, 4, 7]
    assert [result.reason.partition(" (")[0] for result in results] == [
        "made has not improved for 2 epochs",
        "made has not improved for 3 epochs",
        "made has not improved for 2 epochs",
    ]


def test_early_stopping_supports_mode_max_and_a_tolerance(make):
    up = EarlyStopping("accuracy", mode="max", patience=1, tol=0.1)
    assert [up.is_over(value) for value in [0.5, 0.7, 0.75]] == [False, False, True]


def test_nan_is_not_an_improvement():
    nan = float("nan")
    stopping = EarlyStopping(patience=2)
    assert [stopping.is_over(value) for value in [nan, 1.0, nan, nan]] == [False, False, False, True]
    never = EarlyStopping(patience=2)
    assert [never.is_over(nan) for _ in range(2)] == [False, True]
    assert "never a number" in never._reason


def test_a_run_that_stopped_early_stays_stopped_when_it_is_started_again(make, data, tmp_path):
    class Worse:
        def __init__(self):
            self.value = 0

        def on_epoch_end(self, metrics):
            self.value += 1
            metrics["made"] = self.value

        def state_dict(self):
            return {"value": self.value}

        def load_state_dict(self, state):
            self.value = state["value"]

    def run(patience):
        hooks = [Worse(), EarlyStopping("made", patience=patience)]
        trainer = make(hooks=hooks, checkpoint_dir=tmp_path, save_every=5)
        return trainer.fit(data, epochs=9, batch_size=20)

    assert len(run(2).history) == 3
    again = run(2)
    assert (again.status, len(again.history), again.steps) == ("stopped", 3, 3)
    assert len(run(4).history) == 5  # with more patience, the run continues


@pytest.mark.parametrize("monitor", [False, None])
def test_a_run_that_stays_stopped_says_so_once_and_how_to_train_on(make, data, tmp_path, capsys, monitor):
    def run(hooks):
        hooks = [Made([1.0, 2.0, 3.0, 4.0, 0.5, 0.6, 0.7]), *hooks]
        return make(hooks=hooks, checkpoint_dir=tmp_path, monitor=monitor).fit(data, epochs=5, batch_size=20)

    run([EarlyStopping("made", patience=2, mode="min")])
    capsys.readouterr()
    run([EarlyStopping("made", patience=2, mode="min")])
    expected = (
        "EarlyStopping stopped this run after 3 epochs: made has not improved for 2 epochs (best 1). It "
        "stays stopped, so nothing is trained. To train on, remove EarlyStopping('made') or give it a "
        "patience above 2."
    )
    assert capsys.readouterr().out.count(expected) == 1
    assert len(run([]).history) == 5
    capsys.readouterr()
    run([])
    assert "stopped" not in capsys.readouterr().out


def test_a_hook_that_stops_a_run_when_it_resumes_is_reported(make, data, tmp_path, capsys):
    class Refusing:
        def on_resume(self, trainer):
            trainer.stop("the machine is reserved")

    make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=20)
    capsys.readouterr()
    result = make(checkpoint_dir=tmp_path, hooks=[Refusing()]).fit(data, epochs=2, batch_size=20)
    assert (result.status, len(result.history)) == ("stopped", 1)
    assert "a hook stopped this run after 1 epoch: the machine is reserved." in capsys.readouterr().out


def test_a_run_that_starts_from_one_that_stopped_early_starts_counting_from_scratch(make, data, tmp_path):
    def run(folder, resume="auto"):
        hooks = [Made([1.0, 2.0, 3.0, 4.0, 0.5, 0.6, 0.7]), EarlyStopping("made", patience=2, mode="min")]
        trainer = make(hooks=hooks, checkpoint_dir=tmp_path / folder, monitor=None)
        return trainer.fit(data, epochs=6, batch_size=20, resume=resume)

    assert (run("a").status, len(run("a").history)) == ("stopped", 3)
    fresh = run("b", resume=tmp_path / "a")
    assert (fresh.status, len(fresh.history), fresh.steps) == ("finished", 6, 6)
    (reported,) = [e.event.data["message"] for e in read(tmp_path / "b") if e.event.kind == "alert"]
    assert reported == "resumed after 3 updates, 3 epochs done; EarlyStopping starts counting from scratch"


@pytest.mark.parametrize("own_loop", [False, True])
def test_a_hook_used_by_another_run_starts_from_scratch(make, data, own_loop):
    stopping, plateau = EarlyStopping("made", patience=2), ReduceOnPlateau("made", patience=2)

    def run():
        trainer = make(hooks=[Made([1.0, 2.0, 3.0, 4.0]), plateau, stopping])
        while own_loop and trainer.epochs < 4 and not trainer.stop_reason:
            for batch in trainer.epoch(data, batch_size=20):
                trainer.step(batch)
        return trainer.history if own_loop else trainer.fit(data, epochs=4, batch_size=20).history

    first = run()
    assert [row["lr"] for row in first] == pytest.approx([0.1, 0.1, 0.01])
    assert run() == first


def test_stopping_a_run_after_its_last_epoch_has_no_effect(make, data, tmp_path):
    def run(epochs):
        hooks = [Made([1.0, 2.0, 3.0, 4.0]), EarlyStopping("made", patience=2)]
        trainer = make(hooks=hooks, checkpoint_dir=tmp_path, monitor=None)
        result = trainer.fit(data, epochs=epochs, batch_size=20)
        return result.status, result.reason, list(read(tmp_path))[-1].event.data["status"]

    assert run(3) == ("finished", "", "finished")
    assert run(3) == ("finished", "", "finished")
    assert run(4) == ("stopped", "made has not improved for 2 epochs (best 1; lower is better)", "stopped")


def test_a_rate_that_a_hook_changed_is_the_same_in_history_journal_and_bundle(make, data, tmp_path):
    hooks = [Made([1.0, 2.0, 3.0]), ReduceOnPlateau("made", patience=2)]
    trainer = make(hooks=hooks, checkpoint_dir=tmp_path, monitor=None)
    trainer.fit(data, epochs=3, batch_size=20)
    reported = [e.event.data["metrics"]["lr"] for e in read(tmp_path) if e.event.kind == "epoch"]
    saved = list_bundles(tmp_path / "bundles")[-1].metrics["lr"]
    assert [row["lr"] for row in trainer.history] == reported == pytest.approx([0.1, 0.1, 0.01])
    assert reported[-1] == saved == trainer.optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: EarlyStopping(patience=0), "patience=0. Use an integer of at least 1"),
        (lambda: EarlyStopping(mode="most"), "mode='most'. Use 'min' or 'max'"),
        (lambda: ReduceOnPlateau(factor=2), "factor=2. Use a number between 0 and 1"),
        (lambda: ReduceOnPlateau(mode="least"), "ReduceOnPlateau: mode='least'. Use 'min' or 'max'"),
        (lambda: ReduceOnPlateau(patience=1.5), "ReduceOnPlateau: patience=1.5. Use an integer of"),
        (lambda: EarlyStopping(tol=-1), "tol=-1. Use a number of at least 0"),
        (lambda: Phase(1, thaw="encoder"), r"pass lists of paths, for example thaw=\['encoder'\]"),
    ],
)
def test_invalid_settings_of_hooks_raise(build, words):
    with pytest.raises(TrainError, match=words):
        build()


def test_an_unknown_metric_is_named(make, data):
    trainer = make(hooks=[EarlyStopping("eval_los")])
    with pytest.raises(TrainError, match=r"EarlyStopping watches 'eval_los', .*Did you mean 'eval_loss'"):
        trainer.fit(data, epochs=1, batch_size=20, eval_data=data)


@pytest.mark.parametrize("schedule", [None, lambda step: 0.1])
def test_the_rate_falls_on_a_plateau_but_not_below_the_minimum(make, data, schedule):
    def flat(model, x, y):
        return 0.0 * model(x).mean() + 1.0

    hook = ReduceOnPlateau("loss", factor=0.1, patience=2, least=0.005)
    trainer = make(step_fn=flat, hooks=[hook], schedule=schedule)
    trainer.fit(data, epochs=8, batch_size=20)
    rates = [row["lr"] for row in trainer.history]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.005, 0.005, 0.005, 0.005])


class Made:
    """Sets the metric of each epoch from a list, and continues in it after a resume."""

    def __init__(self, values):
        self.values, self.at = values, 0

    def on_epoch_end(self, metrics):
        metrics["made"] = self.values[self.at]
        self.at += 1

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "settings"),
    [
        ([1.0, 2.0, 3.0, 4.0], {}),  # worse and worse
        ([1.0, 9.0, 1.0, 4.0], {}),  # oscillating
        ([1.0, NAN, NAN, NAN], {}),
        ([1.0, 0.95, 0.92, 0.91], {"tol": 0.1}),  # better, but by less than the tolerance
        ([1.0, 1.0, 0.5, 0.6], {"mode": "max"}),
    ],
)
def test_the_rate_falls_when_a_metric_does_not_improve_whatever_its_slope(make, data, values, settings):
    hook = ReduceOnPlateau("made", factor=0.1, patience=2, **settings)
    trainer = make(hooks=[Made(values), hook])
    trainer.fit(data, epochs=4, batch_size=20)
    assert [row["lr"] for row in trainer.history] == pytest.approx([0.1, 0.1, 0.01, 0.01])


def test_the_rate_stays_while_a_metric_improves(make, data):
    trainer = make(hooks=[Made([1.0, 2.0, 1.5, 3.0]), ReduceOnPlateau("made", patience=2, mode="max")])
    trainer.fit(data, epochs=4, batch_size=20)
    assert trainer.optimizer.param_groups[0]["lr"] == 0.1


def test_a_plateau_continues_after_a_resume(make, data, tmp_path):
    def history(folder, *stops):
        for until in stops:
            hooks = [Made([1.0, 2.0, 3.0, 4.0, 0.5, 0.6, 0.7]), ReduceOnPlateau("made", patience=2)]
            trainer = make(hooks=hooks, checkpoint_dir=tmp_path / folder)
            trainer.fit(data, epochs=until, batch_size=20)
        return trainer.history, trainer.optimizer.param_groups[0]["lr"]

    assert history("whole", 7) == history("parts", 1, 2, 4, 6, 7)


def test_a_plateau_state_without_a_best_value_starts_from_scratch():
    hook = ReduceOnPlateau("loss")
    hook.load_state_dict({"since": 2})  # as older versions saved it
    assert hook.state_dict() == {"best": None, "waited": 0, "metric": "loss", "mode": "min"}


def tree():
    torch.manual_seed(0)
    encoder = FlowBuilder(nn.Linear(3, 8)).through(nn.Tanh()).label("encoder").build()
    return FlowBuilder(encoder).through(nn.Linear(8, 1)).tag("head").build()


class Frozen:
    """Records at every step whether the encoder is trained."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, trainer):
        self.seen.append(trainer.model.is_frozen("encoder"))


def test_phases_freeze_and_thaw_by_epoch(make, data):
    frozen = Frozen()
    phases = [Phase(2, thaw=["encoder"]), Phase(0, freeze=["encoder"])]
    trainer = make(tree(), hooks=[*phases, frozen])
    before = trainer.model.encoder.linear_1.weight.clone()
    trainer.fit(data, epochs=2, batch_size=10)
    assert torch.equal(trainer.model.encoder.linear_1.weight, before)
    trainer.fit(data, epochs=3, batch_size=10)
    assert not torch.equal(trainer.model.encoder.linear_1.weight, before)
    assert frozen.seen == [True] * 4 + [False] * 2


@pytest.mark.parametrize("stop_at", [1, 2, 5])
def test_frozen_parts_stay_frozen_after_a_resume(make, data, tmp_path, stop_at):
    def run(folder, until=None):
        frozen = Frozen()

        def on_step_end(trainer, step):
            if step == until:
                trainer.stop("for now")

        phases = [Phase(0, freeze=["encoder"]), Phase(2, thaw=["encoder"])]
        trainer = make(tree(), hooks=[*phases, frozen, on_step_end], checkpoint_dir=tmp_path / folder)
        trainer.fit(data, epochs=3, batch_size=10)
        return frozen.seen, [p.clone() for p in trainer.model.parameters()]

    whole, weights = run("whole")
    first, _ = run("parts", until=stop_at)
    second, resumed = run("parts")
    assert first + second == whole
    assert all(torch.equal(a, b) for a, b in zip(weights, resumed))


def tree_with_dropout():
    torch.manual_seed(0)
    encoder = (
        FlowBuilder(nn.Linear(3, 8)).through(nn.BatchNorm1d(8)).through(nn.Dropout(0.5)).label("encoder")
    )
    return FlowBuilder(encoder.build()).through(nn.Linear(8, 1)).tag("head").build()


@pytest.mark.parametrize("stop_at", [1, 3, 5])
def test_parts_frozen_with_eval_mode_stay_in_evaluation_after_a_resume_until_thawed(
    make, data, tmp_path, stop_at
):
    def run(folder, until=None):
        modes = []

        def on_step_end(trainer, step):
            trainer.model.train()  # as a custom loop does
            modes.append([module.training for module in trainer.model.encoder.modules()])
            if step == until:
                trainer.stop("for now")

        phases = [Phase(0, freeze=["encoder"], eval_mode=True), Phase(2, thaw=["encoder"])]
        trainer = make(tree_with_dropout(), hooks=[*phases, on_step_end], checkpoint_dir=tmp_path / folder)
        trainer.fit(data, epochs=3, batch_size=10, eval_data=data)
        return modes, trainer.model.state_dict()

    whole, weights = run("whole")
    assert whole == [[False] * 4] * 4 + [[True] * 4] * 2
    first, _ = run("parts", until=stop_at)
    second, resumed = run("parts")
    assert first + second == whole
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)


def test_a_thawed_part_stays_thawed_although_the_program_freezes_it_at_the_start(make, data, tmp_path):
    def trainer_of(*hooks):
        model = tree_with_dropout()
        model.freeze("encoder", eval_mode=True)
        return make(model, hooks=hooks, checkpoint_dir=tmp_path)

    trainer_of(Phase(1, thaw=["encoder"])).fit(data, epochs=2, batch_size=10)
    again = trainer_of()
    again.fit(data, epochs=3, batch_size=10)
    assert not again.model.is_frozen("encoder")
    again.model.train()
    assert all(module.training for module in again.model.encoder.modules())


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_phase_needs_a_graph(make, data, epoch):
    trainer = make(hooks=[Phase(epoch, freeze=["0"])])
    with pytest.raises(TrainError, match="the model is a Sequential, not a Graph"):
        trainer.fit(data, epochs=3, batch_size=20)
    assert trainer.updates == 0


def test_a_phase_with_an_unknown_path_raises_before_anything_is_trained(make, data):
    trainer = make(tree(), hooks=[Phase(0, freeze=["encoder"]), Phase(2, thaw=["encodr"])])
    with pytest.raises(PathError, match=r"Did you mean 'encoder'\?"):
        trainer.fit(data, epochs=3, batch_size=20)
    assert trainer.updates == 0


def test_a_hook_can_thaw_a_part_based_on_a_trend(make, data):
    thawed = []

    def on_epoch_end(trainer, epoch):
        graph = trainer.model
        if graph.is_frozen("encoder") and graph.trend("loss").stalled(2, tol=10.0):
            graph.thaw("encoder")
            thawed.append(epoch)

    trainer = make(tree(), hooks=[Phase(0, freeze=["encoder"]), on_epoch_end])
    trainer.fit(data, epochs=4, batch_size=10)
    assert thawed == [1]
    assert trainer.trend("loss").values == trainer.model.trend("loss").values


def test_the_trend_of_an_unknown_metric_raises_with_a_suggestion(make, data):
    def on_epoch_end(trainer):
        if trainer.trend("train_loss").latest < 0.1:
            trainer.model.requires_grad_(False)

    trainer = make(hooks=[on_epoch_end])
    assert not trainer.trend("train_loss").latest < 0.1  # nothing is known yet
    with pytest.raises(MetricError, match=r"no metric 'train_loss' was recorded\. Did you mean 'loss'\?"):
        trainer.fit(data, epochs=2, batch_size=10)
    assert all(parameter.requires_grad for parameter in trainer.model.parameters())


def test_hook_states_are_matched_by_class(make, data, tmp_path):
    make(hooks=[EarlyStopping("loss"), ReduceOnPlateau("loss")], checkpoint_dir=tmp_path).fit(
        data, epochs=2, batch_size=20
    )
    swapped = [ReduceOnPlateau("loss"), Everything(), EarlyStopping("loss"), EarlyStopping("lr")]
    make(hooks=swapped, checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=20)
    assert swapped[0].state_dict()["best"] is not None
    assert swapped[2].state_dict()["best"] is not None
    assert swapped[3].state_dict()["best"] is None


class Unsavable:
    def __init__(self, state):
        self.state = state

    def on_epoch_start(self):
        self.late = 1

    def state_dict(self):
        return {"set": {1}} if self.state == "set" else {"late": self.late}

    def load_state_dict(self, state):
        self.late = state["late"]


def test_a_state_that_cannot_be_saved_is_rejected_before_training(make, data, tmp_path):
    trainer = make(hooks=[Unsavable("set")], checkpoint_dir=tmp_path)
    with pytest.raises(CheckpointError, match=r"at 'hooks\.Unsavable\.set': a set cannot be saved"):
        trainer.fit(data, epochs=1, batch_size=8)
    assert trainer.updates == 0
    # Without a folder nothing is saved, and a state may not exist until after the start.
    assert make(hooks=[Unsavable("set")]).fit(data, epochs=1, batch_size=8).steps == 3
    assert (
        make(hooks=[Unsavable("late")], checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8).steps == 3
    )


def test_on_step_end_is_called_once_per_update_and_after_a_window_that_is_not_full(make, data):
    calls = []

    def on_step_end(step, batch, loss):
        calls.append((step, len(batch[0]), loss.dim()))

    loader = Loader(data, 4, shuffle=False)
    trainer = make(accumulate=2, hooks=[on_step_end])
    trainer.fit(loader, epochs=2)
    assert trainer.updates == 6
    assert calls == [(step, 4, 0) for step in range(1, 7)]


def test_a_scheduler_that_a_hook_steps_counts_updates(make, data):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)

    def on_step_end():
        scheduler.step()

    result = make(model, optimizer=optimizer, accumulate=2, hooks=[on_step_end]).fit(
        data, epochs=1, batch_size=4
    )
    assert (result.steps, scheduler.last_epoch, result.metrics["lr"]) == (3, 3, 0.05)


@pytest.mark.parametrize("name", ["auc", "eval_auc"])
def test_a_metric_that_a_hook_adds_to_an_evaluation_has_the_prefix_once(make, data, name):
    class Adds:
        def on_evaluate_end(self, metrics):
            assert "loss" in metrics
            metrics[name] = 0.5

    row = make(hooks=[Adds()]).fit(data, epochs=1, batch_size=8, eval_data=data).history[0]
    assert row["eval_auc"] == 0.5
    assert "eval_eval_auc" not in row


def test_a_metric_of_a_hook_with_and_without_the_prefix_is_an_error(make, data):
    class AddsTwice:
        def on_evaluate_end(self, metrics):
            metrics["auc"], metrics["eval_auc"] = 0.5, 0.6

    with pytest.raises(TrainError, match="both 'auc' and 'eval_auc'"):
        make(hooks=[AddsTwice()]).fit(data, epochs=1, batch_size=8, eval_data=data)


def test_a_metric_object_whose_name_has_the_prefix_is_an_error(make):
    with pytest.raises(TrainError, match=r"metrics= has the name 'eval_f1'.*Write 'f1'\."):
        make(metrics={"eval_f1": ClassF1(2)})


def test_a_metric_that_a_hook_removes_is_not_in_the_history(make, data):
    def on_epoch_end(metrics):
        del metrics["eval_extra"]

    def step(model, x, y):
        loss = nn.functional.mse_loss(model(x), y)
        return loss, {"extra": loss}

    trainer = make(step_fn=step, hooks=[on_epoch_end])
    result = trainer.fit(data, epochs=1, batch_size=10, eval_data=data)
    assert list(result.history[0]) == ["epoch", "loss", "extra", "lr", "eval_loss"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda metrics: metrics.update(lr=5.0), r"sets metrics\['lr'\] to 5\.0.*trainer\.scale_lr"),
        (lambda metrics: metrics.clear(), "removes the metric 'loss', which every epoch has"),
        (lambda metrics: metrics.pop("lr"), "removes the metric 'lr'"),
    ],
)
def test_a_hook_that_changes_the_rate_or_removes_the_loss_in_the_metrics_is_an_error(
    make, data, change, message
):
    def on_epoch_end(metrics):
        change(metrics)

    with pytest.raises(TrainError, match=message):
        make(hooks=[on_epoch_end]).fit(data, epochs=1, batch_size=10)


def test_a_hook_may_set_the_rate_that_it_gave_to_the_optimizer_in_the_metrics(make, data):
    def on_epoch_end(trainer, metrics):
        trainer.scale_lr(0.5)
        metrics["lr"] = 0.05

    assert make(hooks=[on_epoch_end]).fit(data, epochs=1, batch_size=10).history[0]["lr"] == 0.05
