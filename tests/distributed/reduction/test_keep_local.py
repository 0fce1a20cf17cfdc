"""Ranks that train while a reduction runs: what they trained since their contribution survives."""

import threading

import pytest
import torch

from .small_model import assert_close, assert_identical, make_model, train

pytestmark = pytest.mark.slow


def keep_local(rank):
    """Rank 1 trains on while window 1 is reduced in a thread, and arrives once more before the commit."""
    model = make_model(0)
    reducer = rank.start(model, keep_local=True, wire="fp32")
    rank.first()
    train(model, seed=rank.index)
    reducer.capture(3)
    contributed = rank.values()
    thread = threading.Thread(target=rank.reduce, args=(1, [3, 3]))
    thread.start()
    if rank.index == 1:
        train(model, seed=7)
        second = rank.values()
        reducer.capture(6)
        train(model, seed=8)
    thread.join()
    ahead, first = rank.values(), reducer.consensus.clone()
    reducer.commit()
    found = {"values": reducer.consensus.clone(), "local": rank.values(), "ahead": ahead, "start": first}
    if rank.index == 1:
        found |= {"contributed": contributed, "second": second}
    # Rank 1 contributes its second arrival; it has taken 3 steps since the new version.
    rank.reduce(2, [0, 3])
    reducer.commit()
    found |= {"next": reducer.consensus.clone(), "end": rank.values(), "size": reducer.state.num_parameters}
    found["tracked"] = int(model[1].num_batches_tracked)
    return found


def test_local_steps_survive_the_commit(run_ranks):
    idle, ahead = run_ranks(keep_local, 2)
    assert_identical([idle, ahead])
    assert_identical([idle, ahead], "next")
    num = idle["size"]
    # A rank that took no steps since has exactly the new version.
    assert torch.equal(idle["local"], idle["values"])
    assert torch.equal(idle["end"], idle["next"])
    moved = ahead["values"].double() - ahead["contributed"].double()
    assert_close(ahead["local"][:num], (ahead["ahead"].double() + moved)[:num])
    assert torch.equal(ahead["local"][num + 3 :], ahead["ahead"][num + 3 :])
    progress = ahead["second"].double() - ahead["contributed"].double()
    assert_close(ahead["next"][:num], (ahead["values"].double() + progress)[:num])
    assert_close(ahead["end"][:num], ahead["local"][:num].double(), scale=4)


def starts_during_the_reduction(rank):
    """Rank 1 has no work in window 1. It gets some before the commit, and contributes it to window 2."""
    model = make_model(0)
    reducer = rank.start(model, keep_local=True)
    rank.first()
    start = rank.values()
    if rank.index == 0:
        train(model, seed=1)
        reducer.capture(3)
    rank.reduce(1, [3, 0])
    if rank.index == 1:
        train(model, seed=2)
        reducer.capture(3)
    trained = rank.values()
    reducer.commit()
    found = {"start": start, "trained": trained, "values": reducer.consensus.clone(), "local": rank.values()}
    rank.reduce(2, [0, 3])
    reducer.commit()
    assert torch.equal(rank.values(), reducer.consensus)
    return found | {"next": reducer.consensus, "size": reducer.state.num_parameters}


def test_a_rank_without_work_may_start_to_train_during_a_reduction(run_ranks):
    idle, started = run_ranks(starts_during_the_reduction, 2)
    assert_identical([idle, started])
    assert_identical([idle, started], "next")
    progress = (started["trained"].double() - started["start"].double())[: started["size"]]
    expected = started["values"][: started["size"]].double() + progress
    assert_close(started["local"][: started["size"]], expected)
    assert_close(started["next"][: started["size"]], expected, scale=2)
