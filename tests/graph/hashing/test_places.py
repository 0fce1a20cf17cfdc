"""Names of weights at other nodes: the same file computes a different function."""

import io

import pytest
import torch
from torch import nn

from flodl import FlowBuilder
from flodl.core import CheckpointError
from flodl.graph import structure_of


def linear():
    return nn.Linear(4, 4)


def tagged(first, second):
    return FlowBuilder(linear()).tag(first).through(nn.Tanh()).through(linear()).tag(second).build()


def branches(first, second):
    return FlowBuilder().split({first: linear(), second: linear()}).merge("cat").build()


def nested(first, second):
    return FlowBuilder(nn.Sequential(tagged(first, second))).through(tagged("a", "b")).build()


def carried(first, second):
    def add(x, one=None, other=None):
        return x + one - 2 * other

    flow = FlowBuilder(add).using(one=first, init=nn.Parameter(torch.zeros(4)))
    flow = flow.using(other=second, init=nn.Parameter(torch.ones(4))).tag(first)
    return flow.through(torch.tanh).tag(second).build()


def file_of(model):
    stream = io.BytesIO()
    model.save_checkpoint(stream)
    stream.seek(0)
    return stream


@pytest.mark.parametrize("build", [tagged, branches, nested, carried])
def test_exchanged_names_are_a_different_function_of_the_same_file(build):
    one, two = build("first", "second"), build("second", "first")
    assert (one.structural_hash, one.weights_hash) == (two.structural_hash, two.weights_hash)
    assert two.load_checkpoint(file_of(one)).same_function is False
    with pytest.raises(CheckpointError, match=r"the same structure, but its weights .* other nodes"):
        two.load_checkpoint(file_of(one), allow_different_structure=False)
    assert build("first", "second").load_checkpoint(file_of(one), allow_different_structure=False)


def test_names_of_parts_without_saved_values_and_new_names_do_not_count():
    one = FlowBuilder(linear()).tag("a").through(nn.Tanh()).tag("b").build()
    other_tag = FlowBuilder(linear()).tag("a").through(nn.Tanh()).tag("c").build()
    assert other_tag.load_checkpoint(file_of(one), allow_different_structure=False)
    renamed = FlowBuilder(linear()).tag("z").through(nn.Tanh()).build()
    report = renamed.load_checkpoint(file_of(one), allow_missing=["z.*"], allow_unexpected=["a.*"])
    assert report.same_function


def test_a_module_that_is_used_twice_may_exchange_its_names():
    def build(first, second):
        shared = linear()
        return FlowBuilder(shared).tag(first).through(nn.Tanh()).through(shared).tag(second).build()

    one, two = build("first", "second"), build("second", "first")
    assert two.load_checkpoint(file_of(one), allow_different_structure=False).same_function
    x = torch.randn(2, 4)
    assert torch.equal(one(x), two(x))


@pytest.mark.parametrize("places", [None, "no json", "[1]"])
def test_a_file_without_places_is_compared_by_its_hash_alone(places):
    stored = structure_of(tagged("first", "second")).as_metadata()
    del stored["flodl_places"]
    stored |= {} if places is None else {"flodl_places": places}
    assert structure_of(tagged("second", "first")).is_same_as(stored)
