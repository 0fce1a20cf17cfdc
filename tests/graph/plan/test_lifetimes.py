"""Lifetimes: values are freed as in hand-written code, and a graph with its last reference."""

import copy
import gc
import linecache
import weakref

import torch
from torch import Tensor, nn

from flodl import FlowBuilder, LearnedHalt, SoftmaxRouter

X = torch.ones(4, 8)


def one_of_each():
    part = FlowBuilder(nn.Linear(8, 8)).tag("inner").label("part").build()
    flow = FlowBuilder(nn.Linear(8, 8)).tag("entry").also(part).loop_body(nn.Linear(8, 8))
    return (
        flow.until_cond(LearnedHalt(8), 3).gate(SoftmaxRouter(8, 2), [nn.Linear(8, 8), nn.Identity()]).build()
    )


def watched(chain) -> dict[str, list[bool]]:
    """Run a chain of probes and return, for each probe, which earlier values are still alive."""
    made: dict[str, weakref.ref] = {}
    alive: dict[str, list[str]] = {}

    def probe(name: str):
        def node(x: Tensor, **refs: Tensor) -> Tensor:
            alive[name] = [other for other, ref in made.items() if ref() is not None]
            output = x + 1
            made[name] = weakref.ref(output)
            return output

        return node

    with torch.no_grad():
        result = chain(probe)
    del result
    return alive


def by_hand(probe):
    a, b, c, d = (probe(name) for name in "abcd")
    x = a(X)
    y = b(x)
    x = c(x) + y
    del y
    return d(x)


def by_graph(probe):
    a, b, c, d = (probe(name) for name in "abcd")
    return FlowBuilder(a).split([b, c]).merge("add").through(d).build()(X)


def test_values_are_freed_as_early_as_in_hand_written_code():
    assert watched(by_graph) == watched(by_hand) == {"a": [], "b": ["a"], "c": ["a", "b"], "d": []}


def test_a_value_that_is_referred_to_lives_until_its_last_reader():
    def chain(probe):
        a, b, c, d = (probe(name) for name in "abcd")
        model = FlowBuilder(a).tag("kept").through(b).through(c).using("kept").through(d).build()
        model.keeps_tags = False
        return model(X)

    assert watched(chain) == {"a": [], "b": ["a"], "c": ["a", "b"], "d": ["c"]}


def test_a_tagged_value_lives_until_the_next_call_and_an_unread_branch_is_freed_immediately():
    def chain(probe):
        a, b, c, d = (probe(name) for name in "abcd")
        return FlowBuilder(a).tag("kept").fork(b).through(c).through(d).build()(X)

    assert watched(chain) == {"a": [], "b": ["a"], "c": ["a"], "d": ["a", "c"]}


def test_values_inside_loops_and_nested_graphs_are_freed_in_each_iteration():
    def as_graph(probe):
        a, b, c = (probe(name) for name in "abc")
        body = FlowBuilder(a).through(b).build()
        return FlowBuilder().loop_body(body).for_n(3).through(c).build()(X)

    def in_plain_python(probe):
        a, b, c = (probe(name) for name in "abc")

        def body(x: Tensor) -> Tensor:
            return b(a(x))

        x = X
        for _ in range(3):
            x = body(x)
        return c(x)

    assert watched(as_graph) == watched(in_plain_python)


def test_a_graph_is_freed_without_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        model = one_of_each()
        model(X).sum().backward()
        parts = [weakref.ref(model), weakref.ref(model.entry), weakref.ref(model.entry.weight)]
        del model
        assert [part() for part in parts] == [None, None, None]
    finally:
        gc.enable()


def test_the_generated_source_is_dropped_with_the_graph():
    def held() -> set[str]:
        gc.collect()
        return {name for name in linecache.cache if name.startswith("<flodl graph")}

    before = held()
    model = one_of_each()
    copy.deepcopy(model)
    assert len(held() - before) == 2
    del model
    assert held() <= before
