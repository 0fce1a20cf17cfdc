"""Which backend is chosen, and the reason."""

import pytest
import torch
from torch import nn

from flodl.core.errors import DistributedError
from flodl.distributed.reduction import FlatState, Reducer
from flodl.distributed.reduction.backends import Card, card_of, choose


def card(device="cpu", gpu="", backend="auto", nccl_error=""):
    return Card("f00", 10, "fp32", "Mean()", backend, device, gpu, nccl_error)


def test_ranks_on_the_cpu_use_gloo():
    assert choose((0, 1), [card(), card()]) == ("gloo", "all ranks are on the CPU")


def test_ranks_with_their_own_gpus_use_nccl():
    cards = [card("cuda:0", "a/1"), card("cuda:0", "a/2")]
    assert choose((0, 1), cards) == ("nccl", "each rank has its own GPU")


@pytest.mark.parametrize(
    ("cards", "reason"),
    [
        ([card("cuda:0", "a/1"), card("cuda:0", "a/1")], "ranks 3 and 7 share a GPU"),
        ([card("cuda:0", "a/1"), card(nccl_error="the model is on cpu")], "rank 7: the model is on cpu"),
        ([card("cuda:0", "a/1"), card("cuda:0", "a/2", nccl_error="no")], "rank 7: no"),
    ],
)
def test_where_nccl_cannot_be_used_host_copies_are(cards, reason):
    assert choose((3, 7), cards) == ("host", f"NCCL cannot be used: {reason}")
    for each in cards:
        each.backend = "nccl"
    with pytest.raises(DistributedError, match=f"ranks cannot use NCCL: {reason}. Use backend='host'"):
        choose((3, 7), cards)


def test_host_copies_on_request():
    cards = [card("cuda:0", "a/1", "host"), card("cuda:0", "a/2", "host")]
    assert choose((0, 1), cards) == ("host", "it was asked for")


def test_a_card_survives_the_store():
    found = card_of(FlatState.of(nn.Linear(2, 2)), backend="auto", wire="fp32", outer="Mean()")
    assert Card.from_json(found.to_json().encode()) == found
    assert (found.device, found.num_parameters) == ("cpu", 6)


def test_settings_that_do_not_fit_are_errors():
    state = FlatState.of(nn.Linear(2, 2))
    with pytest.raises(DistributedError, match=r"backend is 'mpi'\. Expected one of auto, gloo, nccl, host"):
        Reducer(state, backend="mpi")
    with pytest.raises(DistributedError, match=r"wire is 'int8'\. Expected one of fp32, bf16"):
        Reducer(state, wire="int8")
    with pytest.raises(DistributedError, match="nccl needs a CUDA device, and the model is on cpu"):
        Reducer(state, backend="nccl")
    state.device = torch.device("cuda", 0)
    with pytest.raises(
        DistributedError, match=r"gloo needs a model on the CPU, and it is on cuda:0\. Use 'host'"
    ):
        Reducer(state, backend="gloo")
