"""Retention policies, checked for any history of saves."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl.checkpoint import (
    Bundle,
    best,
    best_bundle,
    every,
    keep,
    last,
    list_bundles,
    prune_bundles,
    read_bundle,
    save_bundle,
)
from flodl.checkpoint.bundles.retention import apply_policy
from flodl.core import CheckpointError
from flodl.core.best_values import improves

METRICS = st.fixed_dictionaries({}, optional={"loss": st.floats(), "accuracy": st.floats()})
HISTORIES = st.dictionaries(st.integers(0, 10**9), METRICS, max_size=12).map(
    lambda saves: [Bundle(Path(str(step)), step, metrics) for step, metrics in saves.items()]
)
POLICIES = st.one_of(
    st.integers(1, 5).map(last),
    st.integers(1, 5).map(every),
    st.builds(best, st.just("loss"), st.integers(1, 5), mode=st.sampled_from(["min", "max"])),
)


def steps(saves):
    return [save.step for save in saves]


@given(HISTORIES, POLICIES, POLICIES)
def test_every_save_is_kept_or_dropped_and_the_newest_is_kept(saves, one, other):
    kept, dropped = apply_policy(saves, one | other)
    assert sorted(steps(kept) + steps(dropped)) == sorted(steps(saves))
    assert steps(kept) == sorted(steps(kept))
    if saves:
        assert max(steps(saves)) in steps(kept)
    both = {*steps(apply_policy(saves, one)[0]), *steps(apply_policy(saves, other)[0])}
    assert set(steps(kept)) == both
    assert apply_policy(kept, one | other) == (kept, [])
    most = (one | other).most
    assert most is None or len(kept) <= most + 1


@given(HISTORIES, st.integers(1, 5))
def test_last_counts_by_step(saves, n):
    assert steps(keep(saves, last(n))[0]) == sorted(steps(saves))[-n:]


@given(HISTORIES, st.integers(1, 5), st.sampled_from(["min", "max"]))
def test_no_dropped_save_is_better_than_a_kept_best(saves, n, mode):
    kept, dropped = apply_policy(saves, best("loss", n, mode=mode))
    values = [save.metrics["loss"] for save in kept if not math.isnan(save.metrics.get("loss", math.nan))]
    assert len(kept) <= n + 1
    for save in dropped:
        value = save.metrics.get("loss", math.nan)
        assert math.isnan(value) or sum(not improves(value, other, mode) for other in values) >= n


@pytest.mark.parametrize("rounding", [0.0, 1e-9])
def test_of_equal_values_the_first_save_is_the_best(rounding):
    values = [0.5, 0.75, 0.75 + rounding, 0.75, 0.25]
    saves = [Bundle(Path(str(step)), step, {"accuracy": value}) for step, value in enumerate(values)]
    assert steps(keep(saves, best("accuracy"))[0]) == [1, 4]
    assert steps(keep(saves, best("accuracy", 2))[0]) == [1, 2, 4]


def test_policies_have_a_readable_str():
    policy = last(2) | best("loss") | every(1000)
    assert str(policy) == "last(2) | best('loss', 1, mode='min') | every(1000)"


@pytest.mark.parametrize("make", [lambda: last(0), lambda: every(-1), lambda: best("loss", True)])
def test_a_count_is_at_least_one(make):
    with pytest.raises(CheckpointError, match="pass an integer >= 1"):
        make()
    with pytest.raises(CheckpointError, match="mode='least'"):
        best("loss", mode="least")


def test_wrong_policies_and_metrics_raise():
    with pytest.raises(CheckpointError, match=r"^last\(1\) \| 3\. Use a policy on both sides"):
        last(1) | 3
    with pytest.raises(CheckpointError, match=r"^best\(3\): pass the name of a metric first"):
        best(3)


def test_pruning_a_symlink_keeps_its_target(tmp_path):
    for step in (1, 2):
        path = save_bundle(tmp_path / "run", step, {"a": {"b": step}})
        if step == 1:
            elsewhere = path.rename(tmp_path / "elsewhere")
            path.symlink_to(elsewhere)
    assert [save.step for save in prune_bundles(tmp_path / "run", last(1))] == [1]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["step-00000002"]
    assert (elsewhere / "manifest.json").exists()


def test_deletion_follows_the_policy(tmp_path):
    for step, loss in enumerate([0.5, 0.1, 0.4, 0.3, 0.2]):
        save_bundle(tmp_path, step, {"data": {}}, metrics={"loss": loss})
    dropped = prune_bundles(tmp_path, last(1) | best("loss") | every(3))
    assert steps(dropped) == [2]
    assert steps(list_bundles(tmp_path)) == [0, 1, 3, 4]
    with pytest.raises(CheckpointError, match=r"the policy is 'last'\. Pass one such as last\(3\)"):
        prune_bundles(tmp_path, "last")


@pytest.mark.parametrize("policy", [best("accurracy"), last(1) | best("accurracy", mode="max")])
def test_a_metric_that_no_save_has_raises_and_deletes_nothing(tmp_path, policy):
    for step in range(3):
        save_bundle(tmp_path, step, {"data": {}}, metrics={"accuracy": step / 2})
    message = (
        r"needs the metric 'accurracy', which none of 3 saves has\. "
        r"Did you mean 'accuracy'\? Nothing was deleted"
    )
    with pytest.raises(CheckpointError, match=message):
        prune_bundles(tmp_path, policy)
    assert steps(list_bundles(tmp_path)) == [0, 1, 2]
    with pytest.raises(CheckpointError, match=message):
        keep(list_bundles(tmp_path), policy)


def test_a_metric_that_some_saves_have_is_enough(tmp_path):
    for step, metrics in enumerate([{"loss": 0.5}, {"loss": 0.1}, {}, {}]):
        save_bundle(tmp_path, step, {"data": {}}, metrics=metrics)
    assert steps(prune_bundles(tmp_path, best("loss"))) == [0, 2]


def test_saves_without_metrics_are_not_selected_by_metric(tmp_path):
    save_bundle(tmp_path, 1, {"data": {}})
    save_bundle(tmp_path, 2, {"data": {}})
    with pytest.raises(CheckpointError, match=r"none of 2 saves has\. There are no metrics here\."):
        prune_bundles(tmp_path, best("loss"))
    (tmp_path / "none").mkdir()
    assert prune_bundles(tmp_path / "none", best("loss")) == []


def test_the_best_bundle_of_a_run_is_found_by_a_metric(tmp_path):
    for step, (loss, accuracy) in enumerate([(3.0, 0.5), (1.0, 0.9), (2.0, 0.8)]):
        metrics = {"eval_loss": loss, "eval_accuracy": accuracy}
        save_bundle(tmp_path / "bundles", step, {"model": {"step": step}}, metrics=metrics)
    for root in (tmp_path, tmp_path / "bundles"):
        assert best_bundle(root, "eval_accuracy").step == 1
        assert read_bundle(best_bundle(root, "eval_loss"))["model"] == {"step": 1}
        assert best_bundle(root, "eval_loss", mode="max").step == 0
    with pytest.raises(CheckpointError, match="none of 3 bundles has a value of 'eval_los'"):
        best_bundle(tmp_path, "eval_los")
    with pytest.raises(CheckpointError, match="nothing"):
        best_bundle(tmp_path / "nothing", "eval_loss")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="has no bundles"):
        best_bundle(tmp_path / "empty", "eval_loss")


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_better_epoch_whose_bundle_was_not_kept_is_reported(tmp_path, capsys, is_kept):
    history = [{"epoch": epoch, "eval_loss": value} for epoch, value in ((1, 0.5), (2, 0.1), (3, 0.3))]
    for row in history[0 if is_kept else 2 :]:
        save_bundle(tmp_path, row["epoch"], {"history": history}, metrics={"eval_loss": row["eval_loss"]})
    assert best_bundle(tmp_path, "eval_loss").step == (2 if is_kept else 3)
    told = capsys.readouterr().err
    assert ("the best eval_loss of the run was 0.1, in epoch 2, whose bundle" in told) is not is_kept


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: best(), r"best needs 'metric'\. Write best\('eval_loss'\)"),
        (lambda: best("loss", k=3), r"no argument 'k'\. Write best\('eval_loss', 3\)"),
        (lambda: last(), r"last needs 'n'\. Write last\(3\)"),
        (lambda: every(), r"every needs 'k'\. Write every\(1000\)"),
    ],
)
def test_wrong_arguments_of_a_policy_are_explained(call, told):
    with pytest.raises(CheckpointError, match=told):
        call()


@pytest.mark.parametrize(
    "combine",
    [
        lambda a, b: a or b,
        lambda a, b: a and b,
        lambda a, b: a & b,
        lambda a, b: a + b,
        lambda a, _: bool(a),
        lambda a, _: not a,
    ],
    ids=["or", "and", "&", "+", "bool", "not"],
)
def test_a_combination_that_would_lose_saves_is_rejected_and_says_what_to_write(combine):
    with pytest.raises(CheckpointError, match=r"Use \| to keep the saves of both: last\(1\) \| best\('loss'"):
        combine(last(1), best("loss"))
