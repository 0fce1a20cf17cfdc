"""The recorder: records of a supervisor become a report, intervals, and events for the monitor."""

import pytest

from flodl.train.ranks.recorder import Recorder


class Run:
    """A recorder with a clock that the test moves."""

    def __init__(self, **options):
        self.now_s, self.events = 1000.0, []
        self.recorder = Recorder(
            "cadence", num_samples=80, emit=self.events.append, now_s=lambda: self.now_s, **options
        )

    def at(self, now_s, kind, **fields):
        self.now_s = 1000.0 + now_s
        self.recorder.on_event({"t_ms": 1000.0 * now_s, "kind": kind, **fields})

    def join(self, rank, now_s=0.0):
        self.at(now_s, "started", rank=rank, device=f"cpu:{rank}", host="node", pid=1)
        self.at(now_s, "joined", rank=rank, host="node", pid=1)

    def plan(self, now_s, rank, batches):
        self.at(now_s, "plan", rank=rank, batches=batches, ranges=((0, 10 * batches),))

    def arrive(self, now_s, rank, took_s, steps):
        self.at(now_s, "arrived", rank=rank, took_ms=1000.0 * took_s, steps=steps, wait_ms=0.0)

    def reduced(self, now_s, rank, reduce_s):
        self.at(now_s, "reduced", rank=rank, reduce_ms=1000.0 * reduce_s, num_bytes=100, divergence=0.5)

    def commit(self, now_s, *work, late=()):
        batches = sum(each[2] for each in work)
        self.at(now_s, "commit", batches=batches, work=work, late=late)

    def window(self):
        """Rank 0 computes for four seconds, rank 1 for one; both reduce for half a second."""
        for rank, batches in ((0, 6), (1, 2)):
            self.plan(1.0, rank, batches)
        self.arrive(2.0, 1, 1.0, 2)
        self.arrive(5.0, 0, 4.0, 6)
        for rank in (0, 1):
            self.reduced(5.5, rank, 0.5)
        self.commit(5.5, (0, 0, 6, ((0, 60),)), (1, 0, 2, ((60, 80),)))


@pytest.fixture
def run():
    found = Run()
    for rank in (0, 1):
        found.join(rank)
    return found


def test_time_is_divided_into_computing_reducing_and_waiting(run):
    run.window()
    report = run.recorder.report()
    fast, slow = report.ranks[1], report.ranks[0]
    assert (slow.train_s, slow.reduce_s, slow.wait_s) == pytest.approx((4.0, 0.5, 0.0))
    assert (fast.train_s, fast.reduce_s, fast.wait_s) == pytest.approx((1.0, 0.5, 3.0))
    assert (fast.waiting, fast.idle, fast.reducing) == pytest.approx((3 / 4.5, 3 / 4.5, 0.5 / 4.5))
    assert [rank.speed for rank in report.ranks] == pytest.approx([15.0, 20.0])
    assert (report.syncs, report.samples, report.num_bytes, report.divergence) == (1, 80, 200, 0.5)


def test_the_lanes_have_these_intervals(run):
    run.window()
    lane = run.recorder.report().history.slices[1]
    intervals = [
        (start - 1000.0, end - 1000.0, list(parts).index(max(parts))) for start, end, *parts in lane[1:]
    ]
    assert intervals == [
        (pytest.approx(1.0), pytest.approx(2.0), 0),
        (pytest.approx(2.0), pytest.approx(5.0), 2),
        (pytest.approx(5.0), pytest.approx(5.5), 1),
    ]
    assert lane[0][2:] == (0.0, 0.0, 0.0)


def test_evaluation_and_saving_are_pauses(run):
    run.window()
    run.at(5.5, "save", version=1)
    assert [rank.state for rank in run.recorder.report().ranks] == ["paused", "paused"]
    run.plan(8.5, 0, 2)
    rank = run.recorder.report().ranks[0]
    assert (rank.pause_s, rank.state, rank.batches) == (pytest.approx(3.0), "running", 2)
    assert rank.idle == pytest.approx(3.0 / 7.5)
    assert rank.waiting == 0.0


def test_states_follow_what_a_rank_does(run):
    def states():
        return [rank.state for rank in run.recorder.report().ranks]

    assert states() == ["joined", "joined"]
    run.plan(1.0, 0, 1)
    run.plan(1.0, 1, 1)
    assert states() == ["running", "running"]
    run.arrive(2.0, 0, 1.0, 1)
    assert states() == ["waiting", "running"]
    run.commit(2.0, (0, 0, 1, ((0, 10),)), late=(1,))
    assert states() == ["waiting", "late"]
    run.arrive(3.0, 1, 2.0, 1)
    assert states() == ["waiting", "waiting"]
    run.at(4.0, "lost", rank=1, reason="its process ended")
    run.at(4.0, "ended", rank=0, reason="it was asked to")
    assert states() == ["finished", "lost"]
    assert run.recorder.report().ranks[1].lost == "its process ended"


def test_a_rank_that_trains_ahead_loses_no_time_in_reductions(run):
    run.plan(1.0, 0, 1)
    run.plan(1.5, 0, 1)
    run.arrive(2.0, 0, 1.0, 1)
    run.reduced(2.5, 0, 0.4)
    run.arrive(3.0, 0, 1.0, 1)
    rank = run.recorder.report().ranks[0]
    assert (rank.train_s, rank.reduce_s, rank.wait_s) == pytest.approx((2.0, 0.0, 0.0))
    assert rank.num_bytes == 100


def test_the_time_before_the_first_work_does_not_count(run):
    run.plan(500.0, 0, 1)
    run.arrive(501.0, 0, 1.0, 1)
    assert run.recorder.report().ranks[0].idle == 0.0


def test_events_are_limited_and_contain_everything(run):
    for index in range(400):
        run.plan(1.0 + index / 100, 0, 1 + index % 3)
        run.arrive(1.005 + index / 100, 0, 0.005, 1 + index % 3)
        run.commit(1.006 + index / 100, (0, index, 1 + index % 3, ((0, 10),)))
    run.recorder.flush()
    assert 8 <= len(run.events) <= 12
    assert [event["number"] for event in run.events] == list(range(len(run.events)))
    assert sum(count for event in run.events for _, count in event["syncs"]) == 400
    computed_s = sum(each[2] for event in run.events for each in event["slices"]["0"])
    assert computed_s == pytest.approx(2.0, abs=0.05)
    assert all(len(event["pace"].get("0", ())) <= 16 for event in run.events)


def test_after_a_day_an_event_comes_every_ten_seconds(run):
    run.plan(86_400.0, 0, 1)
    before = len(run.events)
    for index in range(1, 101):
        run.plan(86_400.0 + index, 0, 1)
    assert len(run.events) - before == 10


def test_what_is_recorded_before_a_long_window_is_passed_on_in_time(run):
    run.plan(1.0, 0, 5)
    run.plan(1.01, 1, 5)
    before = run.events[-1]["ranks"][1]["state"]
    run.now_s += 1.0
    run.recorder.flush_if_due()
    assert (before, run.events[-1]["ranks"][1]["state"]) == ("joined", "running")
    count = len(run.events)
    run.now_s += 60.0
    run.recorder.flush_if_due()
    assert len(run.events) == count


def test_a_sign_of_life_is_when_a_rank_was_last_seen(run):
    run.plan(1.0, 0, 5)
    run.at(7.0, "beat", rank=0)
    fast, slow = run.events[-1]["ranks"]
    assert (fast["seen_s"], slow["seen_s"]) == (1007.0, 1000.0)
    assert fast["state"] == "running"


def test_the_report_says_over_what_weights_are_averaged(run):
    run.at(1.0, "link", rank=0, backend="gloo", reason="the model is on the CPU")
    assert run.recorder.report().to_dict()["link"] == "gloo: the model is on the CPU"


def test_a_loss_is_passed_on_at_once(run):
    run.at(0.01, "lost", rank=1, reason="its process ended")
    assert run.events[-1]["ranks"][1]["state"] == "lost"


def test_coverage_counts_epochs_and_what_is_left(run):
    run.commit(1.0, (0, 0, 4, ((0, 40),)), (1, 0, 4, ((40, 80),)))
    run.commit(2.0, (0, 1, 1, ((10, 20),)))
    assert (
        str(run.recorder.report().coverage)
        == "1 epoch, each sample once, and 10 of 80 samples of the next one"
    )


def test_missing_and_repeated_samples_are_reported(run):
    run.commit(1.0, (0, 0, 4, ((0, 40),)), (1, 0, 2, ((30, 50),)))
    run.commit(2.0, (0, 1, 8, ((0, 80),)))
    found = run.recorder.report().coverage
    assert (found.epochs, found.missing, found.repeated) == (1, 30, 10)
    assert str(found) == "1 epoch, 30 samples missing, 10 samples repeated"


def test_a_resumed_epoch_is_complete_with_what_was_trained_before():
    run = Run()
    run.recorder.resume(3, [[0, 30], [40, 80]])
    run.join(0)
    run.commit(1.0, (0, 3, 1, ((30, 40),)))
    assert str(run.recorder.report().coverage) == "1 epoch, each sample once"


def test_several_parts_of_a_rank_in_one_commit_add_up(run):
    run.join(0)
    run.join(1)
    run.commit(1.0, (0, 0, 2, ((0, 20),)), (1, 0, 1, ((20, 30),)), (0, 0, 3, ((30, 60),)))
    report = run.recorder.report()
    assert [(rank.updates, rank.samples) for rank in report.ranks] == [(5, 50), (1, 10)]
    assert report.samples == 60
