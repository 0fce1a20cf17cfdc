"""A profile times every node, wherever it is, and does not change the model."""

import copy
import json
import math
import pickle
import random

import pytest
import torch
from torch import nn

from flodl import FixedSelector, FlowBuilder, Graph
from flodl.core import InputError, PathError, PictureError
from flodl.graph.profile.profile import Profile, Row

from ..drawn import everything, tree
from ..nodes import Broken, Double, Remember, Total, double

ROWS = torch.arange(8.0).reshape(4, 2)


def timed_graphs(model: Graph) -> list[Graph]:
    return [module for module in model.modules() if isinstance(module, Graph) and "_stopwatch" in module.code]


def test_rows_are_the_nodes_in_execution_order_with_parts_below():
    profile = everything().eval().profile(torch.ones(2, 4), ctx=torch.ones(2, 8), repeats=1)
    assert [row.path for row in profile.rows] == [
        *("entry", "batchnorm1d_1", "blend_1", "aux", "head_0", "head_1", "merge_1"),
        *("refined", "refined.body"),
        *("gate_1", "gate_1.router", "gate_1.expert_0", "gate_1.expert_1"),
        *("switch_1", "switch_1.selector", "switch_1.branch_0", "switch_1.branch_1"),
        *("map_1", "map_1.body"),
        *("state_memory", "remember_1", "memory", "linear_4", "add_1"),
    ]
    kinds = {row.path: row.kind for row in profile.rows}
    assert (kinds["refined"], kinds["gate_1"], kinds["switch_1"], kinds["map_1"]) == (
        "loop",
        "gate",
        "switch",
        "map",
    )
    assert (kinds["merge_1"], kinds["state_memory"], kinds["entry"]) == ("merge", "state", "call")


def test_calls_are_counted_and_summed():
    profile = everything().eval().profile(torch.ones(2, 4), ctx=torch.ones(2, 8), repeats=3)
    calls = {row.path: row.calls for row in profile.rows}
    assert calls["refined"] == 1
    assert calls["refined.body"] == 3
    assert calls["map_1.body"] == 8
    assert calls["switch_1.branch_0"] == 0
    assert calls["switch_1.branch_1"] == 1
    assert profile.seconds("switch_1.branch_0") == 0.0


def test_shares_are_relative_to_the_total_and_parts_take_no_longer_than_their_node():
    profile = tree().profile(torch.ones(2, 4))
    assert profile.total_s > 0
    assert profile.num_runs == 3
    assert profile.device == "cpu"
    for row in profile.rows:
        assert 0.0 <= row.share <= 1.0
        assert math.isclose(row.share, row.seconds / profile.total_s)
    assert sum(row.seconds for row in profile.rows if row.depth == 0) <= profile.total_s
    for row in profile.rows:
        below = [part for part in profile.rows if part.path.rpartition(".")[0] == row.path]
        assert sum(part.seconds for part in below) <= row.seconds or not row.calls


def test_nodes_of_nested_graphs_are_rows_wherever_the_graph_is():
    profile = tree().profile(torch.ones(2, 4), repeats=1)
    ran = {row.path for row in profile.rows if row.calls}
    assert {
        *("ctx", "ctx.linear_1", "ctx.graph_1", "ctx.graph_1.layernorm_1", "ctx.graph_1.hidden"),
        *("loop_1.body", "loop_1.body.linear_1", "loop_1.body.add_1", "loop_1.condition"),
        *("gate_1.expert_0.linear_1", "gate_1.expert_0.gelu_1", "reader.blend_1"),
    } <= ran
    assert profile["loop_1.body.linear_1"].calls == 4
    assert profile["loop_1.body"].kind == "graph"


def test_a_row_is_found_by_key_tag_label_and_any_path_through_them():
    profile = tree().profile(torch.ones(2, 4), repeats=1)
    assert profile["encoder.graph_1.hidden"] is profile["ctx.graph_1.hidden"]
    assert profile["step.linear_1"] is profile["loop_1.body.linear_1"]
    assert profile["encoder"].path == "ctx"
    assert "encoder.linear_1" in profile
    assert "encoder.linear_9" not in profile
    assert profile.seconds("encoder.linear_1") == profile["ctx.linear_1"].seconds
    with pytest.raises(
        PathError, match=r"the profile has no row 'encoder.linear_9'. Did you mean 'encoder.linear_1'"
    ):
        profile["encoder.linear_9"]


def test_a_second_tag_leads_to_the_same_row():
    model = FlowBuilder(nn.Linear(2, 2)).tag("first").tag("second").build()
    profile = model.profile(ROWS, repeats=1)
    assert profile["second"] is profile["first"]


def test_a_graph_used_twice_has_separate_times():
    shared = FlowBuilder(nn.Linear(2, 2)).label("shared").build()
    profile = FlowBuilder(shared).through(nn.ReLU()).through(shared).build().profile(ROWS, repeats=1)
    assert {row.path: row.calls for row in profile.rows} == {
        "shared": 1,
        "shared.linear_1": 1,
        "relu_1": 1,
        "shared_2": 1,
        "shared_2.linear_1": 1,
    }


def test_experts_that_share_a_module_are_distinguished_and_a_node_that_is_also_a_part_counts_once():
    expert = nn.Linear(2, 2)
    router = FlowBuilder(nn.Linear(2, 2)).through(nn.Softmax(-1)).build()
    profile = FlowBuilder(expert).gate(router, [expert, expert]).build().profile(ROWS, repeats=1)
    assert [profile[path].calls for path in ("linear_1", "gate_1.expert_0", "gate_1.expert_1")] == [1, 1, 1]


def test_a_graph_inside_a_plain_module_is_timed():
    inner = FlowBuilder(nn.Linear(2, 2)).through(nn.ReLU()).build()
    profile = FlowBuilder(nn.Sequential(nn.Tanh(), inner)).build().profile(ROWS, repeats=1)
    assert [row.path for row in profile.rows if row.calls] == [
        *("sequential_1", "sequential_1.1.linear_1", "sequential_1.1.relu_1")
    ]


def test_functions_and_callable_objects_are_timed_as_parts():
    class Resettable:
        resets = 0

        def reset(self) -> None:
            type(self).resets += 1

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x

    model = (
        FlowBuilder(double)
        .loop_body(double)
        .while_cond(lambda x: x.sum() - 1e3, max_iter=2)
        .loop_body(Resettable())
        .for_n(2)
        .build()
    )
    profile = model.profile(ROWS, repeats=1)
    assert [
        profile[path].calls for path in ("double_1", "loop_1.body", "loop_1.condition", "loop_2.body")
    ] == [*(1, 2, 2, 2)]
    assert Resettable.resets == 3
    assert type(model.loop_2.body) is Resettable
    assert model.loop_1.body is double


def test_buffers_rng_state_carried_values_tags_and_traces_are_restored():
    torch.manual_seed(0)
    inner = FlowBuilder(nn.Linear(2, 2)).tag("turn").build()
    model = (
        FlowBuilder(nn.BatchNorm1d(2))
        .through(nn.Dropout(0.5))
        .through(Remember())
        .using("memory")
        .tag("memory")
        .loop_body(inner)
        .for_n(2)
        .tag("looped")
        .build()
    )
    model(ROWS)
    before = {
        "buffers": {
            name: (id(value), value.clone(), value._version) for name, value in model.named_buffers()
        },
        "tags": (model.tagged("memory"), model.tagged("looped")),
        "traces": model.traces("looped.turn"),
        "carried": model._memory.carried[0],
    }
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    model.profile(torch.ones(7, 2))
    for name, value in model.named_buffers():
        identity, content, version = before["buffers"][name]
        assert (id(value), value._version) == (identity, version)
        assert torch.equal(value, content)
    assert (model.tagged("memory"), model.tagged("looped")) == before["tags"]
    assert all(now is then for now, then in zip(model.traces("looped.turn"), before["traces"], strict=True))
    assert model._memory.carried[0] is before["carried"]
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state
    model.tagged("looped").sum().backward()


def test_the_mode_and_the_inputs_do_not_change():
    seen = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_grad_enabled())
        return x

    model = FlowBuilder(nn.ReLU(inplace=True)).through(nn.Dropout(0.5)).through(look).build()
    given = -torch.ones(2, 2)
    model.profile(given, repeats=2)
    assert torch.equal(given, -torch.ones(2, 2))
    assert model.training
    assert set(seen) == {False}


def test_plain_attributes_of_a_module_are_restored():
    class Keeper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.last = torch.zeros(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.last += 1
            self.seen = x
            return x

    model = FlowBuilder(Keeper()).build()
    model.profile(ROWS)
    assert (model.keeper_1.calls, float(model.keeper_1.last)) == (0, 0.0)
    assert not hasattr(model.keeper_1, "seen")


def test_the_program_is_the_same_object_afterwards_even_after_an_error():
    model = FlowBuilder(nn.Linear(2, 2)).loop_body(FlowBuilder(Double()).build()).for_n(2).build()
    program, text = model._program, model.code
    model.profile(ROWS)
    assert (model._program, model.code) == (program, text)
    assert not timed_graphs(model)
    broken = FlowBuilder(nn.Linear(2, 2)).loop_body(FlowBuilder(Broken()).build()).for_n(2).build()
    with pytest.raises(ValueError, match="broken on purpose"):
        broken.profile(ROWS)
    assert not timed_graphs(broken)
    assert not broken.loop_1.body._forward_hooks
    with pytest.raises(PictureError, match="profile"):
        broken.svg_with_profile()


def test_an_input_is_needed():
    model = FlowBuilder(nn.Linear(2, 2)).build()
    with pytest.raises(InputError, match=r"Pass an example: model.profile\(x\)"):
        model.profile()
    with pytest.raises(InputError, match="repeats=0"):
        model.profile(ROWS, repeats=0)
    with pytest.raises(InputError, match="Call the model once"):
        FlowBuilder(nn.LazyLinear(2)).build().profile(ROWS)


def test_examples_are_a_tensor_a_tuple_or_a_dict():
    model = FlowBuilder(nn.Linear(2, 2)).input("ctx").through(Total()).using("ctx").build()
    for example in ((ROWS, ROWS), {"input": ROWS, "ctx": ROWS}):
        assert "Forward:" in model.dot_with_profile(example=example)
    with pytest.raises(InputError, match=r"the example names 'ctx'. Pass the stream as 'input'"):
        model.dot_with_profile(example={"ctx": ROWS})


def test_copies_and_pickles_have_no_profile():
    model = FlowBuilder(nn.Linear(2, 2)).build()
    model.profile(ROWS, repeats=1)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with pytest.raises(PictureError):
            other.svg_with_profile()


def test_a_compiled_graph_is_timed_without_compiling():
    model = FlowBuilder(nn.Linear(2, 2)).build()
    model.compile(backend="eager")
    compiled = model._compiled_call_impl
    assert model.profile(ROWS, repeats=1)["linear_1"].calls == 1
    assert model._compiled_call_impl is compiled


def test_the_table_shows_nesting_calls_and_what_did_not_run():
    model = FlowBuilder().switch(FixedSelector(0), [FlowBuilder(nn.ReLU()).build(), nn.Tanh()]).build()
    lines = str(model.profile(ROWS, repeats=1)).splitlines()
    assert lines[0].startswith("Forward: ")
    assert lines[0].endswith("on cpu, 1 node, mean of 1 run")
    assert [line.split()[0] for line in lines[1:]] == [
        "switch_1",
        "selector",
        "branch_0",
        "relu_1",
        "branch_1",
    ]
    assert [len(line) - len(line.lstrip()) for line in lines[1:]] == [2, 4, 4, 6, 4]
    assert "not run" in lines[5]
    assert "█" in lines[1]


def test_a_profile_is_plain_data_for_json():
    profile = Profile(0.5, "cpu", 1, (Row("a.b", "b", "call", "Linear", 0.25, 2, 0.5, ("t.b",)),))
    told = json.loads(json.dumps(profile.to_dict()))
    assert told["total_s"] == 0.5
    assert told["rows"] == [
        {
            "path": "a.b",
            "key": "b",
            "kind": "call",
            "what": "Linear",
            "seconds": 0.25,
            "calls": 2,
            "share": 0.5,
            "names": ["t.b"],
        }
    ]
