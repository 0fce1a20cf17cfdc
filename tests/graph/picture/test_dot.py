"""DOT text that any Graphviz reads: named nodes, nested clusters, and times after a profile."""

import re

import torch
from torch import nn

from flodl import FlowBuilder
from flodl.graph.picture import Box, Drawing, Edge, write_dot
from flodl.graph.picture.engines import lay_out

from ..drawn import everything, tree
from ..nodes import Remember


def test_the_text_is_a_digraph_with_tags_parameters_and_the_label():
    text = everything().dot()
    assert text.startswith('digraph "everything" {')
    assert "#entry" in text
    assert "40 params" in text
    assert "Forward:" not in text


def test_the_entry_can_be_tagged_as_input():
    model = FlowBuilder(nn.Linear(2, 8)).input("ctx").tag("input").build()
    assert "#input" in model.dot()


def test_the_profiled_text_has_the_time_of_the_whole_and_of_each_node():
    model = FlowBuilder(nn.Linear(2, 2)).through(nn.ReLU()).build()
    text = model.dot_with_profile(example=torch.ones(4, 2))
    assert re.search(r"Forward: [\d.]+ (µs|ms) on cpu", text)
    assert len(re.findall(r"(µs|ms|s)  <?[\d.]+ %", text)) == 2


def test_the_state_edges_connect_declared_nodes():
    model = FlowBuilder(nn.Linear(2, 2)).through(Remember()).using("memory").tag("memory").build()
    text = model.dot()
    assert '"memory" -> "state_memory"' in text
    assert '"state_memory" -> "memory"' in text
    declared = set(re.findall(r'^\s*("[^"]*") \[', text, flags=re.M))
    mentioned = {end for pair in re.findall(r'("[^"]*") -> ("[^"]*")', text) for end in pair}
    assert mentioned <= declared


def test_graphviz_finds_the_clusters_and_nodes_that_were_written():
    model = tree()
    found = lay_out(model.dot())
    names = [thing["name"] for thing in found["objects"]]
    assert len(names) == len(set(names))
    assert {"cluster_ctx", "cluster_ctx.graph_1", "cluster_loop_1.body", "loop_1.condition"} <= set(names)
    outer = next(thing for thing in found["objects"] if thing["name"] == "cluster_ctx")
    inner = next(thing for thing in found["objects"] if thing["name"] == "cluster_ctx.graph_1")
    assert inner["_gvid"] in outer["subgraphs"]


def test_quotes_and_backslashes_are_escaped():
    wild = Box('a"b', "plain", 'say "hi" \\ <b>', text="")
    found = lay_out(write_dot(Drawing('x"y', 0, (wild,), (Edge('a"b', 'a"b'),))))
    assert found["name"] == 'x"y'
    assert [thing["name"] for thing in found["objects"]] == ['a"b']
