"""The loop of a rank, in this process: a test takes the place of the supervisor."""

import math
import pickle
import queue
import threading

import pytest
import torch

from flodl.distributed.coordination import Arrived, Commit, Joined, Plan, Reduce, Reduced, Refuse, SavePoint
from flodl.distributed.coverage import Lease
from flodl.distributed.ranks import (
    Consensus,
    Donate,
    Donation,
    End,
    Failure,
    Faults,
    Fetch,
    RankInfo,
    Receive,
    Report,
    Save,
    Saved,
    Trained,
)
from flodl.distributed.ranks.ahead import AheadAveraging, AheadInbox
from flodl.distributed.ranks.averaging import Averaging
from flodl.distributed.ranks.inbox import Inbox
from flodl.distributed.ranks.loop import RankLoop
from flodl.distributed.reduction import FlatState, Reducer

INFO = RankInfo(0, "cpu", "here")


class Pipe:
    """A channel whose other end is this test."""

    def __init__(self):
        self.to_rank, self.from_rank = queue.SimpleQueue(), queue.SimpleQueue()
        self.send = self.from_rank.put

    def receive(self, timeout_s=None):
        return self.to_rank.get()

    def close(self):
        pass


class Worker:
    """Adds 1 to its weights in each batch."""

    def __init__(self):
        self.weights = torch.zeros(3)
        self.state = FlatState([self.weights])
        self.losses = iter([1.0] * 99)
        self.positions, self.received, self.saved = [], [], []
        self.pause = threading.Event()
        self.pause.set()

    def train(self, lease, position, *, should_stop):
        steps = 0
        self.positions.append(position)
        while steps < lease.batches and not should_stop():
            self.pause.wait(10)
            self.weights += 1.0
            steps += 1
        return Trained(steps, 5.0, loss=next(self.losses), metrics={"m": (1.0, 2.0)})

    def donate(self):
        return b"state"

    def receive(self, donated):
        self.received.append(donated)

    def save(self, point, consensus, outer, coordinator):
        self.saved.append((point.version, consensus.tolist(), coordinator))
        return "path"


class Rank:
    """A rank alone in its world, in a thread."""

    def __init__(self, *, is_ahead=False):
        self.pipe, self.worker = Pipe(), Worker()
        inbox = Inbox(self.pipe)
        self.reducer = Reducer(self.worker.state, keep_local=is_ahead)
        kind = AheadAveraging if is_ahead else Averaging
        averaging = kind(0, self.reducer, None, self.pipe.send, Faults((), 0))
        found = AheadInbox(inbox, averaging) if is_ahead else inbox
        self.loop = RankLoop(INFO, self.worker, averaging, found, self.pipe, Faults((), 0))
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()
        assert self.next().event == Joined(0)

    def send(self, message):
        self.pipe.to_rank.put(message)

    def next(self):
        return self.pipe.from_rank.get(timeout=10)

    def plan(self, number, batches=2, window=1, start=0.0):
        lease = Lease(number, 0, window, batches, ((0, batches),))
        self.send(Plan(window, 1, (number,), (lease,), ((start, 1.0),), ""))

    def reduce(self, window, weight, base=None):
        self.send(Reduce(window, 1, 0, (0,), (weight,), (window if base is None else base,), 0, 1000.0, ""))

    def commit(self, window):
        self.send(Commit(window, window + 1, (0,), 0, 0, (), ()))

    def begin(self):
        self.reduce(0, 0)
        assert isinstance(self.next().event, Reduced)
        self.commit(0)

    def end(self):
        self.send(End("over"))
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.fixture
def start():
    ranks = []

    def make(**options):
        ranks.append(Rank(**options))
        return ranks[-1]

    yield make
    for rank in ranks:
        rank.worker.pause.set()
        rank.end()


def test_a_plan_is_trained_and_reported(start):
    rank = start()
    rank.begin()
    rank.plan(7)
    report = rank.next()
    assert report.event == Arrived(0, 1, 7, 2, 5.0, loss=1.0, wait_ms=report.event.wait_ms)
    assert report.extras["metrics"] == {"m": (1.0, 2.0)}


def test_weights_change_only_by_training_until_the_commit(start):
    rank = start()
    rank.begin()
    rank.plan(0)
    rank.next()
    rank.reduce(1, 2)
    assert rank.next().event.window == 1
    assert (rank.reducer.version, rank.worker.weights.tolist()) == (1, [2.0] * 3)
    rank.commit(1)
    rank.send(Fetch())
    message = rank.next()
    assert isinstance(message, Consensus)
    assert (message.version, message.dtype, message.donated) == (2, "float32", b"state")
    assert torch.frombuffer(bytearray(message.data), dtype=torch.float32).tolist() == [2.0] * 3


def test_the_position_does_not_fall_back_when_work_was_lost(start):
    rank = start()
    rank.begin()
    rank.plan(0, start=100.0)
    rank.next()
    rank.plan(1, start=90.0)
    rank.next()
    assert [position.at(0) for position in rank.worker.positions] == [100.0, 102.0]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_weights_that_are_not_finite_are_reported_as_a_loss_of_nan_and_dropped(start, is_ahead):
    rank = start(is_ahead=is_ahead)
    rank.begin()
    rank.plan(0)
    rank.next()
    rank.worker.weights[1] = math.inf
    rank.plan(1)
    assert math.isnan(rank.next().event.loss)
    rank.send(Refuse(0, "not finite"))
    rank.send(Donate(3))
    assert isinstance(rank.next(), Donation)
    assert rank.worker.weights.tolist() == [0.0] * 3


def test_a_save_gets_the_consensus_and_the_state_of_the_coordinator(start):
    rank = start()
    rank.begin()
    rank.plan(0)
    rank.next()
    rank.send(Save(SavePoint(1, 0, 0, ""), {"version": 1}))
    message = rank.next()
    assert isinstance(message, Saved)
    assert pickle.loads(message.value) == "path"
    assert rank.worker.saved == [(1, [0.0] * 3, {"version": 1})]


def test_a_donation_is_received(start):
    rank = start()
    rank.send(Receive(b"other"))
    rank.send(Receive(None))
    rank.begin()
    assert rank.worker.received == [b"other"]


def test_the_end_stops_training_between_two_batches(start):
    rank = start()
    rank.begin()
    rank.plan(0, batches=10**9)
    rank.end()


def test_a_rank_that_is_ahead_trains_while_it_reduces_and_keeps_its_steps(start):
    rank = start(is_ahead=True)
    rank.begin()
    rank.plan(0)
    rank.next()
    rank.worker.pause.clear()
    rank.plan(1, batches=3)
    rank.reduce(1, 2)
    # The result is there although the rank is in the middle of a batch.
    assert isinstance(rank.next().event, Reduced)
    rank.commit(1)
    rank.worker.pause.set()
    assert rank.next().event.steps == 3
    rank.reduce(2, 3)
    rank.next()
    rank.commit(2)
    rank.send(Donate(0))
    rank.next()
    assert (rank.reducer.version, rank.worker.weights.tolist()) == (3, [5.0] * 3)


def test_a_refusal_during_a_reduction_drops_only_what_is_not_in_it(start):
    rank = start(is_ahead=True)
    rank.begin()
    rank.plan(0)
    rank.next()
    rank.worker.losses = iter([math.nan])
    rank.plan(1, batches=5)
    rank.next()
    rank.reduce(1, 2)
    rank.next()
    rank.send(Refuse(0, "its loss is nan"))
    rank.commit(1)
    rank.send(Donate(0))
    rank.next()
    assert (rank.reducer.version, rank.worker.weights.tolist()) == (2, [2.0] * 3)


def test_a_failure_reads_as_one_line_and_a_traceback():
    failure = Failure(2, "host", 10, 57, "training", "ValueError: bad", "Traceback ...\nValueError: bad\n")
    assert str(failure) == (
        "rank 2 on host (process 10) failed at step 57, training: ValueError: bad\n"
        "Traceback ...\nValueError: bad"
    )
    assert isinstance(Report(Joined(0)).extras, dict)
