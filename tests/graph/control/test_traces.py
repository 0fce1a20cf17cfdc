"""Traces: the values that a loop body publishes in each iteration, found by path."""

import pytest
import torch
from torch import Tensor

from flodl import FlowBuilder, PathError
from flodl.core import LoopError

from ..nodes import Double, Shift

ROWS = torch.tensor([[1.0, 2.0], [3.0, 4.0], [20.0, 1.0]])


def emitting(x: Tensor, emit) -> Tensor:
    if x.amax() > 3:
        emit("large", x)
    emit.publish("every", x)
    return x * 2


def test_an_iteration_may_publish_nothing():
    model = FlowBuilder().loop_body(emitting).for_n(4).tag("loop").build()
    model(torch.ones(1, 1))
    assert [value.item() for value in model.traces("large")] == [4.0, 8.0]
    assert [value.item() for value in model.traces("loop.every")] == [1.0, 2.0, 4.0, 8.0]


def test_publishing_a_name_twice_in_one_iteration_is_rejected():
    def twice(x: Tensor, emit) -> Tensor:
        emit("value", x)
        emit("value", x)
        return x

    with pytest.raises(LoopError) as caught:
        FlowBuilder().loop_body(twice).for_n(2).tag("loop").build()(ROWS)
    assert str(caught.value) == (
        "at 'loop.body': the loop body publishes 'value' twice in one iteration. Publish each name once."
    )
    assert caught.value.__notes__ == ["flodl: iteration 1 of 2"]


def test_the_tags_of_a_graph_in_the_body_are_published_in_each_iteration():
    body = FlowBuilder(Double()).tag("doubled").through(Double()).tag("_hidden").build()
    model = FlowBuilder().loop_body(body).for_n(3).tag("loop").build()
    model(torch.ones(1, 1))
    assert [value.item() for value in model.traces("loop.doubled")] == [2.0, 8.0, 32.0]
    assert [value.item() for value in model.traces("loop")] == [2.0, 8.0, 32.0]
    with pytest.raises(PathError, match=r"no loop publishes 'loop._hidden'. The traces here are 'doubled'"):
        model.traces("loop._hidden")


def test_traces_are_found_by_path_and_ambiguous_names_are_rejected():
    inner = FlowBuilder().loop_body(emitting).for_n(2).tag("loop").label("inner").build()
    model = FlowBuilder().loop_body(emitting).for_n(1).tag("one").through(inner).build()
    with pytest.raises(PathError, match="no loop publishes 'nothing'"):
        model(torch.ones(1, 1)), model.traces("nothing")
    assert len(model.traces("every")) == 1
    assert len(model.traces("inner.every")) == len(model.traces("inner.loop.every")) == 2
    both = (
        FlowBuilder().loop_body(emitting).for_n(1).tag("one").loop_body(emitting).for_n(2).tag("two").build()
    )
    both(torch.ones(1, 1))
    with pytest.raises(PathError, match=r"2 loops publish 'every'. Put the loop's tag in front: 'tag.every'"):
        both.traces("every")
    assert len(both.traces("two.every")) == 2
    with pytest.raises(PathError, match="the loop 'two' publishes"):
        both(4 * torch.ones(1, 1)), both.traces("two")


def test_before_the_first_call_there_are_no_traces():
    assert FlowBuilder().loop_body(emitting).for_n(2).tag("loop").build().traces("every") == []


def test_detach_state_detaches_traces():
    model = FlowBuilder(Shift(1)).loop_body(emitting).for_n(2).build()
    model(torch.ones(1, 1))
    assert model.traces("every")[1].requires_grad
    model.detach_state()
    assert not model.traces("every")[1].requires_grad
