"""The average of the weights, and where it is used."""

import copy

import pytest
import torch
from torch import nn

from flodl import load_checkpoint
from flodl.checkpoint import list_bundles
from flodl.core import TrainError
from flodl.train import AveragedWeights


def small_model(*, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def test_the_average_follows_every_update(make, data):
    trainer = make(ema=0.5, accumulate=2)
    expected = [p.detach().clone() for p in trainer.model.parameters()]
    updates = 0
    for _ in range(2):
        # Three batches and windows of two: the last one is flushed.
        for batch in trainer.epoch(data, batch_size=8):
            trainer.step(batch)
            if trainer.updates != updates:
                updates = trainer.updates
                torch._foreach_lerp_(expected, [p.detach() for p in trainer.model.parameters()], 0.5)
        updates = trainer.updates
        torch._foreach_lerp_(expected, [p.detach() for p in trainer.model.parameters()], 0.5)
    assert updates == 4
    assert all(torch.equal(a, b) for a, b in zip(expected, trainer.average.state_dict().values()))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_average_does_not_change_when_an_update_is_skipped(make, data, accumulate):
    def step_fn(model, x, y):
        calls.append(True)
        return (model(x) - y).square().mean() * (float("nan") if len(calls) == 4 else 1.0)

    calls = []
    trainer = make(step_fn=step_fn, ema=0.5, nan="skip", accumulate=accumulate)
    expected = [p.detach().clone() for p in trainer.model.parameters()]
    skipped = 0
    for batch in trainer.epoch(data, batch_size=4):
        updates = trainer.updates
        trainer.step(batch)
        if trainer.updates > updates and int(trainer.train_step.num_skipped) == skipped:
            torch._foreach_lerp_(expected, [p.detach() for p in trainer.model.parameters()], 0.5)
        skipped = int(trainer.train_step.num_skipped)
    if accumulate == 2:  # the window that was flushed
        torch._foreach_lerp_(expected, [p.detach() for p in trainer.model.parameters()], 0.5)
    assert skipped == 1
    assert all(torch.equal(a, b) for a, b in zip(expected, trainer.average.state_dict().values()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_average_does_not_read_the_flag_on_the_host(dtype):
    def moved(move):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).to(dtype)
        average = AveragedWeights(model, decay=0.9)
        before = [value.clone() for value in average.state_dict().values()]
        with torch.no_grad():
            model.weight.add_(1.0)
        move(average)
        return before, list(average.state_dict().values())

    _, by_lerp = moved(lambda average: average.update())
    _, by_share = moved(lambda average: average._move_unless(torch.tensor(False)))
    for one, other in zip(by_lerp, by_share):
        torch.testing.assert_close(one, other)
    before, after = moved(lambda average: average._move_unless(torch.tensor(True)))
    assert all(map(torch.equal, before, after))


def test_evaluation_reports_the_weights_and_their_average_under_distinct_names(make, data):
    averaged, plain = make(ema=0.9), make()
    a = averaged.fit(data, epochs=2, batch_size=8, eval_data=data).history
    b = plain.fit(data, epochs=2, batch_size=8, eval_data=data).history
    for with_ema, without in zip(a, b):
        average = with_ema.pop("eval_ema_loss")
        assert with_ema == without
        assert average != with_ema["eval_loss"]
    with averaged.average.applied():
        assert plain.step_fn(averaged.model, *data).item() == pytest.approx(average, rel=1e-5)
    assert torch.equal(averaged.model[0].weight, plain.model[0].weight)
    assert averaged.evaluate(data) == {"loss": a[-1]["eval_loss"], "ema_loss": average}


def test_random_numbers_of_an_evaluation_do_not_depend_on_the_average(make, data):
    def noisy(model, x, y):
        return nn.functional.mse_loss(model(x) + torch.randn(len(x), 1), y)

    with_ema, without = make(step_fn=noisy, ema=0.9), make(step_fn=noisy)
    torch.manual_seed(1)
    a = with_ema.fit(data, epochs=2, batch_size=8, eval_data=data).history
    torch.manual_seed(1)
    b = without.fit(data, epochs=2, batch_size=8, eval_data=data).history
    assert [row["eval_loss"] for row in a] == [row["eval_loss"] for row in b]


def test_the_files_of_a_bundle_reproduce_the_metrics_in_its_manifest(make, data, tmp_path):
    make(ema=0.9, checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=8, eval_data=data)
    bundle = list_bundles(tmp_path / "bundles")[-1]
    for file, metric in (("model.fdl", "eval_loss"), ("average.fdl", "eval_ema_loss")):
        twin = make()
        load_checkpoint(bundle.path / file, twin.model.state_dict())
        assert twin.evaluate(data, batch_size=8)["loss"] == bundle.metrics[metric]


def test_an_iterator_cannot_be_evaluated_twice(make, data):
    trainer = make(ema=0.9)
    with pytest.raises(TrainError, match=r"with ema= they are read twice"):
        trainer.evaluate(iter([data]))


def test_a_value_that_is_named_like_one_of_the_average_is_refused(make, data):
    def step_fn(model, x, y):
        loss = nn.functional.mse_loss(model(x), y)
        return loss, {"ema_loss": loss}

    with pytest.raises(TrainError, match=r"averaged weights \(ema\) are both named 'ema_loss'"):
        make(step_fn=step_fn, ema=0.9).evaluate(data)


def test_an_average_that_the_saved_run_did_not_have_starts_from_its_weights(make, data, tmp_path):
    make(checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=8)
    trainer = make(checkpoint_dir=tmp_path, ema=0.9)
    trainer.fit(data, epochs=2, batch_size=8)
    assert torch.equal(trainer.average.state_dict()["0.weight"], trainer.model[0].weight)


def test_a_saved_average_loads_like_a_model_with_buffers_and_tied_weights(make, data, tmp_path):
    def model():
        first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        second.weight = first.weight
        return torch.nn.Sequential(first, second, torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))

    trainer = make(model(), ema=0.9, checkpoint_dir=tmp_path)
    evaluated = trainer.fit(data, epochs=2, batch_size=10, eval_data=data).metrics["eval_ema_loss"]
    (bundle,) = list_bundles(tmp_path / "bundles")[-1:]
    twin = model().eval()
    load_checkpoint(bundle.path / "average.fdl", twin.state_dict())
    assert trainer.step_fn(twin, *data).item() == pytest.approx(evaluated, rel=1e-5)
    resumed = make(model(), ema=0.9, checkpoint_dir=tmp_path)
    resumed.fit(data, epochs=2, batch_size=10, eval_data=data)
    assert torch.equal(resumed.average.state_dict()["2.weight"], trainer.average.state_dict()["2.weight"])


def test_the_weights_are_restored_after_an_error_while_they_are_swapped():
    model = torch.nn.Linear(2, 1)
    average = AveragedWeights(model, decay=0.9)
    before = model.weight.detach().clone()
    average._average[0].zero_()
    average._average[1] = torch.zeros(7)  # does not fit
    with pytest.raises(RuntimeError), average.applied():
        pass
    assert torch.equal(model.weight, before)


def test_a_different_model_is_rejected():
    average = AveragedWeights(torch.nn.Linear(2, 1), decay=0.9)
    with pytest.raises(TrainError, match="has no 'weight'"):
        average.load_state_dict({"other": torch.zeros(1)})


def test_a_lazy_parameter_has_nothing_to_average_yet(make):
    with pytest.raises(TrainError, match=r"ema: '0\.weight' has no shape yet. Call the model"):
        make(nn.Sequential(nn.LazyLinear(1)), ema=0.9)


@pytest.mark.parametrize(
    "action",
    [
        lambda trainer, data: trainer.fit(data, epochs=2, batch_size=8),
        lambda trainer, data: trainer.step(data),
        lambda trainer, data: trainer.epoch(data, batch_size=8),
        lambda trainer, data: trainer.evaluate(data),
        lambda trainer, data: trainer.save(),
    ],
    ids=["fit", "step", "epoch", "evaluate", "save"],
)
def test_a_trainer_does_nothing_while_the_model_has_the_averaged_weights(make, data, tmp_path, action):
    trainer = make(ema=0.9, checkpoint_dir=tmp_path)
    trainer.fit(data, epochs=1, batch_size=8)
    updates = trainer.updates
    with trainer.average.applied():
        with trainer.average.applied():
            pass
        with pytest.raises(TrainError, match=r"was called inside average.applied\(\)"):
            action(trainer, data)
    assert trainer.updates == updates
    trainer.fit(data, epochs=2, batch_size=8, eval_data=data)
    assert trainer.epochs == 2


def test_the_average_starts_from_the_weights_before_the_first_update(make, data):
    good = small_model(seed=3)
    late, early = make(small_model(), ema=0.9, seed=0), make(small_model(seed=3), ema=0.9, seed=0)
    late.model.load_state_dict(good.state_dict())
    assert late.evaluate(data)["ema_loss"] == late.evaluate(data)["loss"]
    rows = [trainer.fit(data, epochs=1, batch_size=8, eval_data=data).metrics for trainer in (late, early)]
    assert rows[0] == rows[1]


def test_a_loaded_average_is_kept_at_the_first_update(make, data):
    trainer = make(small_model(), ema=0.5)
    trainer.average.load_state_dict(dict(small_model(seed=5).named_parameters()))
    with trainer.average.applied():
        assert torch.equal(trainer.model[0].weight, small_model(seed=5)[0].weight)
    before = {name: value.clone() for name, value in trainer.average.state_dict().items()}
    trainer.step(*data)
    torch.testing.assert_close(
        trainer.average.state_dict()["0.weight"], (before["0.weight"] + trainer.model[0].weight) / 2
    )


def test_weights_that_are_loaded_between_two_fits_are_reported_for_the_average(make, data, capsys):
    trainer = make(small_model(), ema=0.9)
    trainer.fit(data, epochs=1, batch_size=8)
    trainer.evaluate(data)
    with trainer.average.applied():
        pass
    trainer.fit(data, epochs=2, batch_size=8)
    assert "(ema)" not in capsys.readouterr().err
    trainer.model.load_state_dict(small_model(seed=4).state_dict())
    trainer.evaluate(data)
    trainer.fit(data, epochs=3, batch_size=8)
    assert "their average (ema) continues from the earlier ones" in capsys.readouterr().err


def test_a_copy_of_a_trainer_knows_whether_its_weights_were_changed(make, data, capsys):
    trainer = make(ema=0.9)
    trainer.fit(data, epochs=1, batch_size=5)
    copied = copy.deepcopy(trainer)
    copied.fit(data, epochs=2, batch_size=5)
    told = capsys.readouterr()
    assert "the weights were changed" not in told.out + told.err
    nn.init.zeros_(copied.model[0].weight)
    for each in (copied, copy.deepcopy(copied)):
        each.fit(data, epochs=3, batch_size=5)
        assert "and their average (ema) continues from the earlier ones" in capsys.readouterr().err
    trainer.fit(data, epochs=2, batch_size=5)
    assert "the weights were changed" not in capsys.readouterr().err
    assert (
        trainer.average.state_dict()["0.weight"].data_ptr()
        != copied.average.state_dict()["0.weight"].data_ptr()
    )


def test_without_ema_the_average_says_how_to_get_one(make):
    trainer = make()
    assert not hasattr(trainer, "average")
    with pytest.raises(TrainError, match=r"no attribute 'average'.*Trainer\(…, ema=0\.999\)"):
        trainer.average.applied()


def test_applied_without_with_is_reported(capsys):
    average = AveragedWeights(small_model(), decay=0.9)
    average.applied()
    assert "average.applied() was called without `with`, which has no effect" in capsys.readouterr().err
    with average.applied():
        pass
    assert capsys.readouterr().err == ""


def test_the_average_of_something_else_than_a_model_is_an_error():
    with pytest.raises(TrainError, match=r"the model is a list, not an nn\.Module"):
        AveragedWeights([], decay=0.9)
