"""The policies of several devices: `sync` equals one device, the others do not wait for late ranks."""

import os
import time

import pytest
import torch

from flodl.distributed.ranks import Fault

pytestmark = pytest.mark.slow

ADAM = {"optimizer": lambda groups: torch.optim.Adam(groups, lr=0.01), "clip_norm": 1.0}


def deep_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def check_same(model, other):
    for mine, theirs in zip(model.parameters(), other.parameters()):
        assert torch.allclose(mine, theirs, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize(("num_ranks", "accumulate"), [(2, 1), (3, 1), (2, 3)])
def test_sync_equals_one_device_with_the_same_batches(make, data, supervision, num_ranks, accumulate):
    """The last batch of an epoch has 2 samples, fewer than three ranks."""
    x, y = data[0][:142], data[1][:142]
    settings = {**ADAM, "accumulate": accumulate, "schedule": lambda step: 0.01 / (1 + 0.1 * step)}
    one, other = deep_model(), deep_model()
    alone = make(one, device="cpu", **settings).fit((x, y), epochs=3, batch_size=10, eval_data=data)
    trainer = make(other, devices=["cpu"] * num_ranks, policy="sync", **settings)
    result = trainer.fit((x, y), epochs=3, batch_size=10, eval_data=data)
    supervision.check_coverage(142, range(3))
    check_same(one, other)
    assert result.steps == alone.steps
    for mine, theirs in zip(result.history, alone.history):
        assert mine == pytest.approx(theirs, abs=1e-5)
    # Every rank took part in every update, with its part of the batch.
    ranks = result.ranks.ranks
    assert [rank.updates for rank in ranks] == [result.steps] * num_ranks
    assert sum(rank.samples for rank in ranks) == 3 * 142
    assert max(rank.samples for rank in ranks) - min(rank.samples for rank in ranks) <= 3 * 15


def test_the_report_of_sync_counts_the_averages_of_gradients(make, data, supervision):
    def loss_of(model, x, y):
        time.sleep(0.01 if os.environ.get("FLODL_RANK") == "1" else 0.0)
        return (model(x) - y).square().mean()

    result = make(None, loss_of, devices=["cpu"] * 2, policy="sync").fit(data, epochs=2, batch_size=10)
    fast, slow = result.ranks.ranks
    # Each of the 48 updates sums 5 gradients and the weight; a rank sends half of the vector twice.
    assert min(fast.num_bytes, slow.num_bytes) >= 48 * 6 * 4
    assert fast.wait_s > slow.wait_s
    assert min(fast.reduce_s, slow.reduce_s) > 0.0
    assert fast.train_s < slow.train_s


@pytest.mark.parametrize("point", ["plan", "batch", "arrive"])
def test_sync_repeats_the_window_in_which_a_rank_was_lost(make, data, supervision, point):
    one, other = deep_model(), deep_model()
    make(one, device="cpu", **ADAM).fit(data, epochs=2, batch_size=4)
    supervision.use(faults=[Fault(1, point, 2, skip=3 if point == "batch" else 0)])
    result = make(other, devices=["cpu"] * 3, policy="sync", **ADAM).fit(data, epochs=2, batch_size=4)
    supervision.check_coverage(240, range(2))
    assert result.ranks.ranks[1].lost
    assert result.steps == 120
    check_same(one, other)


def test_sync_resumes_and_skips_as_one_device(make, data, supervision, tmp_path):
    x, y = data
    x[17, 0] = torch.inf
    one, other = deep_model(), deep_model()
    settings = {**ADAM, "nan": "skip", "dry_pass": False}
    alone = make(one, device="cpu", **settings).fit((x, y), epochs=2, batch_size=4)
    settings |= {"policy": "sync", "checkpoint_dir": tmp_path}
    make(deep_model(), **settings).fit((x, y), epochs=1, batch_size=4)
    result = make(other, devices=["cpu"] * 3, **settings).fit((x, y), epochs=2, batch_size=4)
    check_same(one, other)
    assert [row["skipped_updates"] for row in result.history] == [1, 1]
    for mine, theirs in zip(result.history, alone.history):
        assert mine == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize(("num_ranks", "accumulate"), [(2, 1), (3, 2)])
def test_sync_leaves_the_whole_of_a_batch_out_of_the_means(make, data, supervision, num_ranks, accumulate):
    """One sample is not finite, so the loss of one rank; the parts of the others are finite."""
    x, y = data[0][:142], data[1][:142]
    x[17] = torch.nan
    settings = {**ADAM, "nan": "skip", "dry_pass": False, "accumulate": accumulate}
    alone = make(device="cpu", **settings).fit((x, y), epochs=2, batch_size=10)
    trainer = make(devices=["cpu"] * num_ranks, policy="sync", **settings)
    result = trainer.fit((x, y), epochs=2, batch_size=10)
    assert [row["skipped_updates"] for row in result.history] == [1, 1]
    for mine, theirs in zip(result.history, alone.history):
        assert mine == pytest.approx(theirs, abs=1e-5)


def test_cadence_continues_without_a_rank_that_is_late(make, data, supervision, tmp_path):
    gate = tmp_path / "gate"

    def loss_of(model, x, y):
        until_s = time.monotonic() + 30.0
        while os.environ.get("FLODL_RANK") == "2" and not gate.exists() and time.monotonic() < until_s:
            time.sleep(0.001)
        return (model(x) - y).square().mean()

    def on_record(record):
        if record["kind"] == "commit" and record["version"] == 3:
            gate.touch()

    supervision.use(on_record=on_record)
    result = make(None, loss_of, devices=["cpu"] * 3).fit(data, epochs=4, batch_size=2, eval_data=data)
    supervision.check_coverage(240, range(4))
    assert supervision.kinds("commit")[2]["late"] == (2,)
    assert result.ranks.samples == 960
    assert not any(rank.lost for rank in result.ranks.ranks)


def test_cadence_on_two_ranks_waits_for_both(make, data, supervision):
    make().fit(data, epochs=2, batch_size=2)
    assert not any(record["late"] for record in supervision.kinds("commit"))


def test_async_covers_each_sample_once_and_trains(make, data, supervision):
    def loss_of(model, x, y):
        time.sleep(0.004 if os.environ.get("FLODL_RANK") == "1" else 0.001)
        return (model(x) - y).square().mean()

    trainer = make(None, loss_of, devices=["cpu"] * 3, policy="async")
    result = trainer.fit(data, epochs=6, batch_size=2, eval_data=data)
    supervision.check_coverage(240, range(6))
    # How stale the work of the slow rank is depends on timing; the loss before training is about 16.
    assert result.metrics["eval_loss"] < 0.16
    assert result.steps == 720
    error = trainer.model(data[0]) - data[1]
    assert result.metrics["eval_loss"] == pytest.approx(error.square().mean().item(), rel=1e-4, abs=1e-7)


def test_async_survives_a_killed_rank(make, data, supervision):
    supervision.use(faults=[Fault(2, "batch", 2)])
    result = make(devices=["cpu"] * 3, policy="async").fit(data, epochs=3, batch_size=2)
    supervision.check_coverage(240, range(3))
    assert result.status == "finished"


def test_sync_without_a_monitor_still_says_what_differs_from_one_device(make, data, capsys):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    make(model, devices=["cpu"] * 2, policy="sync", monitor=False, **ADAM).fit(data, epochs=1, batch_size=40)
    assert "".join(capsys.readouterr()).count("statistics of each rank's part of a batch") == 1
