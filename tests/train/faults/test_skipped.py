"""Updates that are skipped with nan="skip" are counted and reported."""

import pytest
import torch

from flodl.core import TrainError


def with_nan(data, *samples):
    x, y = data[0].clone(), data[1]
    x[list(samples)] = torch.nan
    return x, y


def test_skipped_updates_are_in_the_history_the_result_and_the_console(make, data, capsys):
    result = make(nan="skip", monitor=None).fit(with_nan(data, 3), epochs=2, batch_size=5)
    assert [row["skipped_updates"] for row in result.history] == [1, 1]
    assert (result.skipped, result.steps) == (2, 8)
    shown = capsys.readouterr().out
    assert shown.count("of 4 updates skipped: the loss or the gradients were not finite") == 2


def test_an_epoch_in_which_every_update_was_skipped_says_that_nothing_was_trained(make, data, capsys):
    make(nan="skip").fit((data[0] * torch.nan, data[1]), epochs=1, batch_size=5)
    assert (
        "epoch 1: 4 of 4 updates skipped: the loss or the gradients were not finite. Nothing was trained"
        in (capsys.readouterr().err)
    )


def test_the_count_is_that_of_the_epoch_with_accumulation_and_after_a_resume(make, data, tmp_path):
    def stop(trainer, step):
        if step == 3:
            trainer.stop("enough")

    stop.__name__ = "on_step_end"
    bad, settings = with_nan(data, *range(8)), {"nan": "skip", "accumulate": 2}
    whole = make(**settings).fit(bad, epochs=3, batch_size=4).history
    make(**settings, checkpoint_dir=tmp_path, hooks=[stop]).fit(bad, epochs=3, batch_size=4)
    resumed = make(**settings, checkpoint_dir=tmp_path).fit(bad, epochs=3, batch_size=4).history
    counts = [row["skipped_updates"] for row in whole]
    assert counts == [row["skipped_updates"] for row in resumed]
    assert all(0 <= count <= 3 for count in counts)
    assert sum(counts) > 0


def test_without_the_policy_a_history_has_no_such_column(make, data):
    assert "skipped_updates" not in make().fit(data, epochs=1, batch_size=8).metrics


def test_the_name_of_the_count_is_reserved(make, data):
    def step(model, x, y):
        return (model(x) - y).square().mean(), {"skipped_updates": x.mean()}

    with pytest.raises(TrainError, match="'skipped_updates', which is reserved"):
        make(step_fn=step).fit(data, epochs=1, batch_size=8)
