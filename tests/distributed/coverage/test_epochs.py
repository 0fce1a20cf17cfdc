"""Epochs open, overlap and finish in order."""

import json

import pytest

from flodl.core import DistributedError
from flodl.distributed.coverage import Epochs


def test_epochs_finish_in_order_even_if_a_later_one_is_complete_first():
    epochs = Epochs(num_samples=8, batch_size=4, num_epochs=3, overlap=True)
    slow = epochs.grant(0, window=0, batches=1)
    for _ in range(3):
        lease = epochs.grant(1, window=0, batches=1)
        epochs.commit(lease, batches=1)
    assert epochs.pool(1).is_complete
    assert epochs.finish() == []
    epochs.commit(slow, batches=1)
    assert epochs.finish() == [0, 1]
    assert epochs.current == 2


def test_without_overlap_the_next_epoch_waits_for_the_last_batch():
    epochs = Epochs(num_samples=8, batch_size=4, num_epochs=2)
    lease = epochs.grant(0, window=0, batches=2)
    assert epochs.grant(1, window=0, batches=1) is None
    assert epochs.free_batches == 0
    epochs.commit(lease, batches=2)
    epochs.finish()
    assert epochs.free_batches == 2


def test_a_finished_epoch_is_never_opened_again():
    epochs = Epochs(num_samples=4, batch_size=4, num_epochs=2, overlap=True)
    for epoch in range(2):
        lease = epochs.grant(0, window=epoch, batches=1)
        assert lease.epoch == epoch
        epochs.commit(lease, batches=1)
        epochs.finish()
    assert epochs.is_finished
    assert epochs.grant(0, window=2, batches=1) is None
    assert not epochs.holds(lease)
    with pytest.raises(DistributedError, match=r"epoch 1 is not open. Open epochs: \[\]"):
        epochs.commit(lease, batches=1)


def test_free_batches_count_epochs_that_have_not_started_when_they_overlap():
    epochs = Epochs(num_samples=8, batch_size=4, num_epochs=3, overlap=True)
    assert epochs.free_batches == 6
    epochs.grant(0, window=0, batches=2)
    assert epochs.free_batches == 4
    assert epochs.grant(0, window=0, batches=9).batches == 2


def test_epochs_resume_in_the_middle():
    epochs = Epochs(num_samples=8, batch_size=4, num_epochs=2, overlap=True)
    first, second = (epochs.grant(rank, window=0, batches=2) for rank in range(2))
    epochs.commit(second, batches=1)
    again = Epochs.from_state(json.loads(json.dumps(epochs.state())), keep_leases=False)
    assert not again.holds(first)
    assert [again.grant(7, window=1, batches=9).ranges for _ in range(2)] == [((0, 8),), ((4, 8),)]


def test_a_wrong_number_of_epochs_is_an_error():
    with pytest.raises(DistributedError, match="at 'num_epochs': expected an integer of at least 1, got 0"):
        Epochs(num_samples=8, batch_size=4, num_epochs=0)


def test_a_finished_run_can_continue_for_more_epochs():
    epochs = Epochs(num_samples=8, batch_size=4)
    epochs.commit(epochs.grant(0, window=0, batches=2), batches=2)
    epochs.finish()
    more = Epochs.from_state({**epochs.state(), "num_epochs": 2})
    assert more.grant(0, window=1, batches=9).epoch == 1
