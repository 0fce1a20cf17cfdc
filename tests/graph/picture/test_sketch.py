"""A drawing has every node once, clusters that nest, and edges between boxes that exist."""

import functools
from collections import Counter

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, Graph, ThresholdHalt
from flodl.graph.picture import Box, Cluster, Drawing, Edge, sketch

from ..drawn import everything, tree
from ..nodes import Remember, Total


def box(drawing: Drawing, path: str) -> Box:
    return next(box for box in drawing.boxes() if box.path == path)


def cluster(drawing: Drawing, path: str) -> Cluster:
    return next(cluster for cluster in drawing.clusters() if cluster.path == path)


def edges(drawing: Drawing, kind: str) -> list[tuple[str, str]]:
    return [(edge.tail, edge.head) for edge in drawing.edges if edge.kind == kind]


@pytest.mark.parametrize("model", [everything(), tree()], ids=["everything", "tree"])
def test_every_node_is_drawn_once_and_every_edge_ends_at_boxes(model):
    drawing = sketch(model)
    items = Counter(item.path for item in [*drawing.boxes(), *drawing.clusters()])
    assert set(items.values()) == {1}
    assert {node.key for node in model.spec.nodes} <= set(items)
    assert {end for edge in drawing.edges for end in (edge.tail, edge.head)} <= {
        box.path for box in drawing.boxes()
    }


def test_a_box_shows_type_settings_tags_and_parameters():
    model = FlowBuilder(nn.Linear(4, 8)).tag("entry").through(nn.Linear(8, 1)).build()
    model.freeze("linear_2")
    drawing = sketch(model)
    entry = box(drawing, "entry")
    assert (entry.title, entry.settings, entry.tags, entry.num_parameters) == (
        "Linear",
        "4 → 8",
        ("entry",),
        40,
    )
    assert not entry.frozen
    assert box(drawing, "linear_2").frozen


def test_the_family_of_a_box_follows_from_its_module():
    model = (
        FlowBuilder(nn.Linear(4, 4))
        .through(nn.LayerNorm(4))
        .through(nn.SiLU())
        .through(nn.Dropout(0.1))
        .through(nn.functional.relu)
        .through(nn.Flatten())
        .build()
    )
    families = [box.family for box in sketch(model).boxes()]
    assert families == ["input", "layer", "norm", "activation", "dropout", "activation", "plain", "output"]


def test_a_carried_value_has_edges_from_its_writer_and_to_its_reader():
    model = (
        FlowBuilder(nn.Linear(2, 2))
        .through(Remember())
        .using("memory")
        .through(nn.Tanh())
        .tag("memory")
        .build()
    )
    drawing = sketch(model)
    assert box(drawing, "state_memory").family == "state"
    assert edges(drawing, "carry") == [("memory", "state_memory")]
    assert edges(drawing, "state") == [("state_memory", "remember_1")]


def test_a_reference_edge_is_labeled_with_its_tag():
    model = (
        FlowBuilder(nn.Linear(2, 2)).tag("early").through(nn.ReLU()).through(Total()).using("early").build()
    )
    assert Edge("early", "total_1", "ref", "early") in sketch(model).edges


def test_the_stream_enters_an_inner_graph_at_the_node_that_reads_it_and_leaves_from_the_last():
    inner = FlowBuilder(nn.Linear(2, 2)).through(nn.ReLU()).label("inner").build()
    drawing = sketch(FlowBuilder(nn.Linear(2, 2)).through(inner).through(nn.Tanh()).build())
    assert [item.path for item in cluster(drawing, "inner").inside] == ["inner.linear_1", "inner.relu_1"]
    stream = edges(drawing, "stream")
    assert ("linear_1", "inner.linear_1") in stream
    assert ("inner.relu_1", "tanh_1") in stream


def test_an_input_that_several_nodes_read_is_a_dot_in_its_graph():
    inner = FlowBuilder().also(nn.Linear(2, 2)).label("inner").build()
    drawing = sketch(FlowBuilder(nn.ReLU()).through(inner).build())
    assert box(drawing, "inner.input").family == "port"
    assert ("relu_1", "inner.input") in edges(drawing, "stream")
    assert ("inner.input", "inner.add_1") in edges(drawing, "stream")


def test_an_inner_graph_gets_its_named_inputs_where_they_are_read():
    drawing = sketch(tree())
    assert Edge("ctx.graph_1.hidden", "reader.blend_1", "ref", "ctx") in drawing.edges


def test_graphs_are_clusters_with_and_without_a_label_wherever_they_are():
    drawing = sketch(tree())
    graphs = {cluster.path: cluster.title for cluster in drawing.clusters() if cluster.kind == "graph"}
    assert graphs == {
        "ctx": "encoder",
        "ctx.graph_1": "graph_1",
        "loop_1.body": "step",
        "gate_1.expert_0": "expert_0",
        "switch_1.branch_1": "branch_1",
        "reader": "reader",
    }
    assert cluster(drawing, "ctx.graph_1") in cluster(drawing, "ctx").inside
    assert cluster(drawing, "loop_1.body") in cluster(drawing, "loop_1").inside


def test_the_stream_of_a_gate_fans_out_to_the_experts_and_the_router_weights_their_sum():
    drawing = sketch(everything())
    inside = [item.path for item in cluster(drawing, "gate_1").inside]
    assert inside == ["gate_1.(in)", "gate_1.router", "gate_1.expert_0", "gate_1.expert_1", "gate_1.(sum)"]
    assert ("refined.body", "gate_1.(in)") in edges(drawing, "stream")
    assert edges(drawing, "route")[0] == ("gate_1.router", "gate_1.(sum)")
    assert Edge("entry", "gate_1.router", "ref", "entry") in drawing.edges
    assert box(drawing, "gate_1.router").family == "route"


def test_the_back_edge_of_a_loop_leads_to_the_start_of_an_iteration():
    model = (
        FlowBuilder(nn.Linear(2, 2))
        .loop_body(nn.Linear(2, 2))
        .for_n(3)
        .loop_body(nn.Linear(2, 2))
        .while_cond(ThresholdHalt(9.0), max_iter=5)
        .loop_body(nn.Linear(2, 2))
        .until_cond(ThresholdHalt(9.0), max_iter=7)
        .build()
    )
    drawing = sketch(model)
    assert edges(drawing, "again") == [
        ("loop_1.body", "loop_1.body"),
        ("loop_2.body", "loop_2.condition"),
        ("loop_3.condition", "loop_3.body"),
    ]
    assert [cluster.settings for cluster in drawing.clusters()] == [
        "×3",
        "while, at most 5",
        "until, at most 7",
    ]
    stream = edges(drawing, "stream")
    assert ("loop_2.condition", "loop_3.body") in stream
    assert ("loop_3.condition", "(output)") in stream


def test_references_of_a_loop_go_to_the_part_that_takes_them():
    def stop(x: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
        return x.sum() - limit.sum()

    model = (
        FlowBuilder(nn.Linear(2, 2))
        .tag("limit")
        .loop_body(nn.ReLU())
        .while_cond(stop, max_iter=2)
        .using("limit")
        .build()
    )
    assert edges(sketch(model), "ref") == [("limit", "loop_1.condition")]


def test_merges_show_a_symbol_or_a_name():
    def biggest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.maximum(a, b)

    def merged(op: object) -> str:
        model = FlowBuilder().split([nn.Linear(2, 2), nn.Linear(2, 2)]).merge(op).build()
        return box(sketch(model), "merge_1").title

    assert [merged(op) for op in ("add", "mul", "mean", "cat", biggest)] == [
        "+",
        "×",
        "mean",
        "cat",
        "biggest",
    ]
    assert merged(nn.Bilinear(2, 2, 2)) == "Bilinear"


def test_functions_have_their_own_names():
    model = (
        FlowBuilder(torch.relu).through(lambda x: x).through(functools.partial(torch.clamp, min=0)).build()
    )
    assert [box.title for box in sketch(model).boxes()] == ["input", "relu", "lambda", "clamp", "output"]


def test_a_bare_graph_is_an_arrow_from_input_to_output():
    assert sketch(FlowBuilder().build()).edges == (Edge("input", "(output)"),)


def test_a_profile_gives_boxes_and_clusters_their_times():
    model: Graph = everything().eval()
    profile = model.profile(torch.ones(2, 4), ctx=torch.ones(2, 8), repeats=1)
    drawing = sketch(model, profile)
    timed = {item.path for item in [*drawing.boxes(), *drawing.clusters()] if item.timing is not None}
    assert timed == {row.path for row in profile.rows}
    timing = cluster(drawing, "refined").timing
    assert timing is not None
    assert timing.seconds == profile.seconds("refined")
    assert drawing.total_s == profile.total_s
