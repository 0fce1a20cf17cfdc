"""The report of several ranks: text, plain data, and the timeline."""

import json

import pytest

from flodl.core import MonitorError, TrainError
from flodl.train.ranks.report import Coverage, RankReport, RanksReport


@pytest.fixture
def report():
    fast = RankReport(0, "cuda:0", "node", "finished", 30, 300, 10, 6.0, 2.0, 1.0, 1.0, 3 << 20)
    slow = RankReport(1, "cpu", "node", "lost", 10, 100, 3, 10.0, lost="its process ended")
    return RanksReport(
        "cadence", [fast, slow], syncs=7, samples=400, divergence=0.0125, coverage=Coverage(200, 2)
    )


def test_the_text_has_all_numbers(report):
    assert str(report).splitlines() == [
        "2 ranks, policy 'cadence': 7 syncs, 15.0% idle (10.0% waiting), 5.0% reducing, 3.0 MB sent, "
        "divergence 0.0125",
        "  coverage: 2 epochs, each sample once",
        "  rank 0 on cuda:0: 30 updates, 300 samples (75.0%), 50 samples/s, 30.0% idle (20.0% waiting), "
        "10.0% reducing, 3.0 MB sent",
        "  rank 1 on cpu: 10 updates, 100 samples (25.0%), 10 samples/s, 0.0% idle (0.0% waiting), "
        "0.0% reducing, 0 B sent, lost: its process ended",
    ]


def test_the_plain_data_has_the_same_numbers(report):
    found = json.loads(json.dumps(report.to_dict()))
    assert (found["syncs"], found["idle"], found["num_bytes"]) == (7, pytest.approx(0.15), 3 << 20)
    assert found["coverage"] == {"num_samples": 200, "epochs": 2, "partial": 0, "missing": 0, "repeated": 0}
    assert [rank["share"] for rank in found["ranks"]] == [0.75, 0.25]
    assert found["ranks"][1]["lost"] == "its process ended"


def test_a_report_without_a_rank_has_no_timeline(report, tmp_path):
    with pytest.raises(TrainError, match="no rank has started"):
        report.timeline(tmp_path / "ranks.svg")


def test_the_timeline_needs_a_known_suffix(report, tmp_path):
    report.history.add({"start_s": 1.0, "number": 0, "ranks": [{"rank": 0}]})
    with pytest.raises(MonitorError, match=r"\.svg or \.html"):
        report.timeline(tmp_path / "ranks.pdf")
    assert report.timeline(tmp_path / "ranks.html").exists()
