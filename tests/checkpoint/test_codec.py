"""The codec: every state is restored exactly, and anything else raises."""

import json
import random

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from flodl.checkpoint import decode, encode
from flodl.core import CheckpointError

from .states import same


def through_text(state):
    structure, tensors = encode(state)
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    return decode(json.loads(json.dumps(structure)), copies)


TENSORS = st.sampled_from(
    [torch.zeros(0, 3), torch.tensor(1.5), torch.arange(3), torch.ones(2, dtype=torch.bfloat16)]
)
KEYS = st.one_of(
    st.text(max_size=4),
    st.integers(),
    st.none(),
    st.booleans(),
    st.tuples(st.integers(), st.text(max_size=2)),
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.binary(max_size=4), TENSORS
)
STATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(st.sampled_from(["$tensor", "$tuple", "a"]), inner, max_size=2),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(STATES)
def test_any_state_is_restored_exactly(state):
    assert same(state, through_text(state))


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.99)),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.LBFGS(p, max_iter=2),
        lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), capturable=False),
    ],
)
def test_an_optimizer_continues_from_its_restored_state(make):
    def run(model, optimizer, steps):
        for _ in range(steps):

            def closure():
                optimizer.zero_grad()
                loss = model(torch.ones(3, 4)).square().sum()
                loss.backward()
                return loss

            optimizer.step(closure)

    torch.manual_seed(0)
    one = nn.Linear(4, 2)
    first = make(one.parameters())
    run(one, first, 3)
    two = nn.Linear(4, 2)
    two.load_state_dict(through_text(one.state_dict()))
    second = make(two.parameters())
    second.load_state_dict(through_text(first.state_dict()))
    run(one, first, 2)
    run(two, second, 2)
    assert torch.equal(one.weight, two.weight)
    assert same(first.state_dict(), second.state_dict())


def test_random_generators_continue_from_their_restored_state():
    state = {
        "python": random.getstate(),
        "numpy": numpy.random.default_rng(3).bit_generator.state,
        "numpy_old": numpy.random.RandomState(3).get_state(),
        "torch": torch.get_rng_state(),
    }
    back = through_text(state)
    assert same(state, back)
    random.setstate(back["python"])
    numpy.random.RandomState().set_state(back["numpy_old"])
    torch.set_rng_state(back["torch"])


def test_dtypes_and_devices_are_restored():
    state = {"dtype": torch.bfloat16, "device": torch.device("cuda:1"), "shape": torch.Size([2, 3])}
    assert through_text(state) == state
    assert type(through_text(state)["shape"]) is torch.Size
    assert type(through_text(numpy.float32(0.5))) is float


def test_tensor_names_are_paths_and_never_clash():
    one, two = torch.zeros(1), torch.ones(1)
    structure, tensors = encode({"a.b": one, "a": {"b": two}, 1: [two], "1": [one]})
    assert list(tensors) == ["a.b", "a.b#2", "1.0", "1.0#2"]
    assert same(decode(structure, tensors)["a"]["b"], two)


def test_a_flat_dict_of_tensors_keeps_its_names():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert list(encode(model.state_dict())[1]) == list(model.state_dict())


class Thing:
    pass


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [1, Thing()]}, r"at 'a\.1': a Thing cannot be saved\. Save its contents"),
        ({"a": {Thing(): 1}}, r"at 'a': a key is a Thing\. Use strings, numbers or tuples"),
        ({"a": {1, 2}}, r"a set cannot be saved"),
        ({"a": numpy.array([Thing()])}, r"an ndarray cannot be saved"),
    ],
)
def test_an_unsupported_value_raises_with_its_path(state, message):
    with pytest.raises(CheckpointError, match=message):
        encode(state)


def test_a_state_that_contains_itself_raises():
    state: dict[str, object] = {}
    state["again"] = state
    with pytest.raises(CheckpointError, match="contains itself"):
        encode(state)


@pytest.mark.parametrize(
    "structure",
    [
        {"$tensor": "none"},
        {"$tensor": 3},
        {"$unknown": 1},
        {"$dtype": "load"},
        {"$float": "x"},
        {"$bytes": "?"},
    ],
)
def test_an_invalid_structure_raises(structure):
    with pytest.raises(ValueError):
        decode(structure, {})
