"""A run on several ranks in its journal, on its page and in its report."""

import json
import os
import signal
import time
from urllib.request import urlopen

import pytest

from flodl.monitor import Monitor
from flodl.monitor.exports import save_rank_timeline
from flodl.monitor.snapshot import snapshot

pytestmark = pytest.mark.slow


def test_a_slow_and_a_lost_rank_are_visible_during_the_run_and_afterwards(make, data, supervision, tmp_path):
    calls = []

    def loss_of(model, x, y):
        rank = os.environ.get("FLODL_RANK")
        calls.append(rank)
        if rank == "2" and len(calls) > 4:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01 if rank == "1" else 0.0)
        return (model(x) - y).square().mean()

    monitor = Monitor(3, tmp_path / "run", console=False, resources=False)
    url = monitor.serve(port=0)
    live = []

    def look(record):
        if record["kind"] == "lost":
            with urlopen(f"{url}api/rank_work") as response:
                live.append(json.load(response))

    supervision.use(on_record=look)
    trainer = make(None, loss_of, devices=["cpu"] * 3, monitor=monitor)
    result = trainer.fit(data, epochs=3, batch_size=4, eval_data=data)
    monitor.close()
    # During the run, the page has what happened up to a moment ago.
    assert [len(found["ranks"]) for found in live] == [3]
    shown, report = snapshot(tmp_path / "run")["rank_work"], result.ranks
    assert [row["state"] for row in shown["ranks"]] == ["finished", "finished", "lost"]
    assert "ended" in shown["ranks"][2]["lost"]
    assert [row["samples"] for row in shown["ranks"]] == [rank.samples for rank in report.ranks]
    assert shown["totals"]["syncs"] == report.syncs
    assert shown["totals"]["coverage"] == report.to_dict()["coverage"]
    assert str(report.coverage) == "3 epochs, each sample once"
    assert report.ranks[0].speed > report.ranks[1].speed
    for rank in report.ranks[:2]:
        lane = shown["slices"][str(rank.rank)]
        assert sum(each[2] for each in lane) == pytest.approx(rank.train_s, abs=0.05)
        assert rank.idle + rank.reducing + rank.train_s / rank.total_s == pytest.approx(1.0)
    written = save_rank_timeline(tmp_path / "journal.svg", tmp_path / "run").read_text()
    assert written.count("rank ") == report.timeline(tmp_path / "report.svg").read_text().count("rank ")


def test_a_run_on_one_device_records_nothing_about_ranks(make, data, tmp_path):
    with Monitor(1, tmp_path / "run", console=False, resources=False) as monitor:
        result = make(device="cpu", monitor=monitor).fit(data, epochs=1, batch_size=8)
    assert result.ranks is None
    assert snapshot(tmp_path / "run")["rank_work"] == {}


@pytest.mark.parametrize("policy", ["sync", "async"])
def test_every_policy_has_a_timeline(make, data, supervision, policy, tmp_path):
    result = make(policy=policy).fit(data, epochs=2, batch_size=4)
    assert str(result.ranks.coverage) == "2 epochs, each sample once"
    assert "rank 1" in result.ranks.timeline(tmp_path / "ranks.svg").read_text()
    for rank in result.ranks.ranks:
        assert 0.0 <= rank.waiting <= rank.idle <= 1.0
        assert rank.train_s > 0.0
