"""Hooks that would never be called are rejected."""

import pytest

from flodl.core import TrainError
from flodl.train import EarlyStopping, ReduceOnPlateau
from flodl.train.callbacks.dispatch import Hooks


def test_a_misspelled_method_next_to_a_hook_is_an_error_with_a_suggestion(make):
    class Mine:
        def on_start(self): ...
        def on_epoch_ends(self): ...

    with pytest.raises(
        TrainError, match=r"Mine has a method 'on_epoch_ends', .* Did you mean 'on_epoch_end'"
    ):
        make(hooks=[Mine()])


def test_an_attribute_that_begins_like_a_hook_is_not_an_error(make):
    class Mine:
        on_gpu = False

        def on_start(self): ...

    make(hooks=[Mine()])


def test_a_class_in_place_of_a_hook_is_an_error(make):
    with pytest.raises(TrainError, match=r"the class EarlyStopping, .* hooks=\[EarlyStopping\(…\)\]"):
        make(hooks=[EarlyStopping])


def test_a_class_whose_hooks_are_static_methods_is_a_hook(make, data):
    class Mine:
        @staticmethod
        def on_epoch_end(epoch):
            seen.append(epoch)

    seen = []
    make(hooks=[Mine]).fit(data, epochs=1, batch_size=8)
    assert seen == [0]


def asynchronous():
    async def on_epoch_end(self, metrics): ...

    return on_epoch_end


def generator():
    def on_epoch_end(self, metrics):
        yield metrics

    return on_epoch_end


def asynchronous_generator():
    async def on_epoch_end(self, metrics):
        yield metrics

    return on_epoch_end


class AsynchronousObject:
    async def __call__(self, metrics): ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            asynchronous(),
            r"on_epoch_end is a coroutine function \(async def\), so a call runs none of its code",
        ),
        (generator(), r"on_epoch_end is a generator function \(it contains yield\), so a call runs none"),
        (asynchronous_generator(), "on_epoch_end is a generator function"),
        (AsynchronousObject(), r"is a coroutine function .* write a plain function, def on_epoch_end\(…\)"),
        (staticmethod(asynchronous()), "is a coroutine function"),
    ],
    ids=["async", "yield", "async and yield", "an object", "static"],
)
def test_a_hook_whose_body_would_never_run_is_rejected_at_the_start(make, function, words):
    mine = type("Mine", (), {"on_epoch_end": function})
    with pytest.raises(TrainError, match=words):
        make(hooks=[mine()])


@pytest.mark.parametrize("inner", [asynchronous(), generator()], ids=["async", "yield"])
def test_a_hook_that_returns_a_coroutine_or_generator_is_an_error(make, data, inner):
    class Mine:
        def on_epoch_end(self, metrics):
            return inner(self, metrics)

    with pytest.raises(TrainError, match=r"Mine.on_epoch_end is a function that returns a (corout|gener)"):
        make(hooks=[Mine()]).fit(data, epochs=1, batch_size=8)


@pytest.mark.parametrize(
    ("hook", "method"),
    [
        ("on_step_end", "step"),
        ("on_save", "step"),
        ("on_save", "save"),
        ("on_epoch_start", "epoch"),
        ("on_epoch_end", "epoch"),
    ],
)
def test_a_hook_that_calls_a_method_that_would_call_it_again_is_an_error(make, data, tmp_path, hook, method):
    def call(trainer):
        arguments = {"step": data, "epoch": (data, 8), "save": ()}[method]
        getattr(trainer, method)(*arguments)

    call.__name__ = hook
    trainer = make(hooks=[call], checkpoint_dir=tmp_path / "run", save_every_steps=1)
    with pytest.raises(TrainError, match=rf"trainer\.{method} was called in {hook}\. "):
        trainer.fit(data, epochs=2, batch_size=8)


def test_hooks_may_train_on_a_batch_evaluate_and_save_where_they_are_not_called_again(make, data, tmp_path):
    class Mine:
        def on_step_end(self, trainer):
            trainer.evaluate(data)
            trainer.save()

        def on_epoch_end(self, trainer):
            trainer.step(*data)

    trainer = make(hooks=[Mine()], checkpoint_dir=tmp_path / "run")
    assert trainer.fit(data, epochs=2, batch_size=10).steps == 6


@pytest.mark.parametrize("asks", [True, "stop"])
def test_a_note_says_once_how_a_hook_that_returns_a_request_to_stop_stops_the_run(make, data, capsys, asks):
    class Mine:
        def on_epoch_end(self, epoch):
            return asks if epoch else None

    assert len(make(hooks=[Mine()]).fit(data, epochs=4, batch_size=8).history) == 4
    told = (
        f"on_epoch_end of Mine returned {asks!r}, which has no effect. To stop the run, a hook calls trainer"
    )
    assert capsys.readouterr().out.count(told) == 1


def test_results_that_are_not_a_request_to_stop_are_not_reported(make, data, capsys):
    class Mine:
        def on_epoch_start(self):
            return True

        def on_step_end(self, step):
            return step

        def on_epoch_end(self, trainer, epoch):
            if epoch == 1:
                trainer.stop()
            return epoch == 1

    make(hooks=[Mine()]).fit(data, epochs=3, batch_size=8)
    assert "has no effect" not in capsys.readouterr().out


class TestStates:
    def plateaus(self):
        one = ReduceOnPlateau("loss", patience=2)
        return one, ReduceOnPlateau("lr", patience=50, mode="max")

    def saved(self, make):
        one, two = self.plateaus()
        hooks = Hooks([one, two], make())
        one.load_state_dict({"best": 1.0, "waited": 1})
        two.load_state_dict({"best": 2.0, "waited": 7})
        return hooks.state_dict()

    def test_hooks_of_one_class_in_another_order_keep_their_states(self, make):
        states = self.saved(make)
        one, two = self.plateaus()
        hooks = Hooks([two, one], make())
        hooks.load_state_dict(states)
        assert (one.state_dict(), two.state_dict()) == (
            {"best": 1.0, "waited": 1, "metric": "loss", "mode": "min"},
            {"best": 2.0, "waited": 7, "metric": "lr", "mode": "max"},
        )
        assert hooks.guessed(states) == []

    def test_a_hook_whose_settings_changed_takes_the_state_that_is_left(self, make):
        states = self.saved(make)
        changed, two = ReduceOnPlateau("loss", patience=3), self.plateaus()[1]
        hooks = Hooks([two, changed], make())
        hooks.load_state_dict(states)
        assert changed.state_dict() == {"best": 1.0, "waited": 1, "metric": "loss", "mode": "min"}
        assert hooks.guessed(states) == []

    def test_hooks_whose_settings_all_changed_are_assigned_by_their_metrics(self, make):
        states = self.saved(make)
        other = ReduceOnPlateau("lr", patience=51, mode="max"), ReduceOnPlateau("loss", patience=3)
        hooks = Hooks(other, make())
        hooks.load_state_dict(states)
        assert [hook.state_dict()["best"] for hook in hooks.all] == [2.0, 1.0]
        assert hooks.guessed(states) == []

    def test_hooks_of_other_metrics_are_assigned_in_order_reported_and_start_from_scratch(self, make):
        states = self.saved(make)
        hooks = Hooks([ReduceOnPlateau("eval_loss"), ReduceOnPlateau("eval_f1")], make())
        hooks.load_state_dict(states)
        assert [hook.state_dict()["best"] for hook in hooks.all] == [None, None]
        assert hooks.guessed(states) == ["ReduceOnPlateau"]

    def test_states_of_an_older_bundle_are_assigned_in_order(self, make):
        states = [pair[:2] for pair in self.saved(make)]
        hooks = Hooks([*self.plateaus()], make())
        hooks.load_state_dict(states)
        assert [hook.state_dict()["best"] for hook in hooks.all] == [1.0, 2.0]
        assert hooks.guessed(states) == []


class Half:
    def on_epoch_end(self):
        pass

    def state_dict(self):
        return {"count": 1}


def test_a_hook_whose_state_would_never_be_loaded_is_an_error(make, data, tmp_path):
    message = "the hook Half has state_dict and no load_state_dict: its state would be lost"
    with pytest.raises(TrainError, match=message):
        make(hooks=[Half()], checkpoint_dir=tmp_path / "run").fit(data, epochs=1, batch_size=10)
    make(hooks=[Half()]).fit(data, epochs=1, batch_size=10)


def test_none_means_no_hooks(make, data):
    assert make(hooks=None).fit(data, epochs=1, batch_size=8).steps == 3
