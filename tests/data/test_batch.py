"""Functions over the tensors of a batch of any structure."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch.utils import _pytree as pytree

from flodl.data.batch import map_tensors, num_bytes_of, tensors_in

Pair = namedtuple("Pair", ["x", "y"])
ONE, TWO = torch.tensor(1), torch.tensor([2.0, 3.0])

BATCHES = [
    ONE,
    (ONE, TWO),
    [ONE, TWO],
    {"b": ONE, "a": TWO},
    {1: ONE, "a": TWO},
    (),
    [],
    {},
    (ONE, "name", 3),
    {"x": ONE, "more": {"y": [TWO]}},
    Pair(ONE, TWO),
    OrderedDict(x=ONE),
    (ONE, (TWO, ONE)),
    "no tensors",
    None,
]


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: type(batch).__name__)
def test_a_batch_keeps_its_structure_and_the_order_of_its_tensors(batch):
    expected = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    found = tensors_in(batch)
    assert len(found) == len(expected)
    assert all(one is other for one, other in zip(found, expected))
    made = map_tensors(lambda tensor: tensor + 1, batch)
    assert type(made) is type(batch)
    assert pytree.tree_structure(made) == pytree.tree_structure(batch)
    assert [tensor.tolist() for tensor in tensors_in(made)] == [(t + 1).tolist() for t in expected]
    assert num_bytes_of(batch) == sum(tensor.nbytes for tensor in expected)


def test_other_values_stay_unchanged():
    assert map_tensors(torch.neg, (ONE, "name", 3))[1:] == ("name", 3)
