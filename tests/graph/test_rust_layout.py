"""Checkpoints with the names that the Rust floDl writes load into the same graph."""

import io
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from flodl import FlowBuilder, Graph
from flodl.checkpoint import migrate_checkpoint, save_checkpoint
from flodl.core import CheckpointError


def rust_file(tensors: dict[str, Tensor]) -> io.BytesIO:
    stream = io.BytesIO()
    save_checkpoint(stream, tensors, format="fdlc")
    stream.seek(0)
    return stream


def linear(width: int = 4) -> dict[str, Tensor]:
    return {"weight": torch.randn(width, width), "bias": torch.randn(width)}


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def check(model: Graph, wanted: dict[str, Tensor]) -> None:
    state = model.state_dict()
    for name, tensor in wanted.items():
        assert torch.equal(state[name], tensor), name


def test_nodes_without_a_tag_are_numbered_across_all_types():
    model = FlowBuilder(nn.Linear(4, 4))
    for _ in range(2):
        model = model.through(nn.GELU()).through(nn.Linear(4, 4))
    model = model.build()
    layers = [linear() for _ in range(3)]
    # Here linear_3 is the third linear layer, in the Rust floDl the third node.
    stored = under("linear_1", layers[0]) | under("linear_3", layers[1]) | under("linear_5", layers[2])
    assert model.load_checkpoint(rust_file(stored)).is_complete
    check(model, {f"linear_{k}.weight": layer["weight"] for k, layer in enumerate(layers, start=1)})


def test_the_order_in_the_file_does_not_matter():
    model = FlowBuilder(nn.Linear(4, 4)).through(nn.Tanh()).through(nn.Linear(4, 4)).build()
    layers = [linear(), linear()]
    model.load_checkpoint(rust_file(under("linear_11", layers[1]) | under("linear_9", layers[0])))
    check(model, {"linear_1.bias": layers[0]["bias"], "linear_2.bias": layers[1]["bias"]})


def test_tagged_nodes_are_matched_by_tag_and_the_others_by_number():
    model = (
        FlowBuilder(nn.Linear(4, 4)).through(nn.Linear(4, 4)).tag("hidden").through(nn.Linear(4, 4)).build()
    )
    first, hidden, last = linear(), linear(), linear()
    stored = under("hidden", hidden) | under("linear_1", first) | under("linear_3", last)
    model.load_checkpoint(rust_file(stored))
    check(model, {"linear_1.weight": first["weight"], "hidden.weight": hidden["weight"]})
    check(model, {"linear_3.weight": last["weight"]})


def test_nested_graphs_are_flat_and_numbered():
    inner = FlowBuilder(nn.Linear(4, 4)).through(nn.ReLU()).through(nn.Linear(4, 4)).label("inner").build()
    model = FlowBuilder(nn.Linear(4, 4)).through(inner).build()
    outer, a, b = linear(), linear(), linear()
    nested = {"weight_0": a["weight"], "bias_0": a["bias"], "weight_1": b["weight"], "bias_1": b["bias"]}
    model.load_checkpoint(rust_file(under("linear_1", outer) | under("graph_2", nested)))
    check(model, {"inner.linear_1.weight": a["weight"], "inner.linear_2.bias": b["bias"]})


def test_loops_and_gates_are_flat_too():
    body = FlowBuilder(nn.Linear(4, 4)).through(nn.Tanh()).build()
    model = (
        FlowBuilder()
        .loop_body(body)
        .for_n(2)
        .gate(nn.Linear(4, 2), [nn.Linear(4, 4), nn.Linear(4, 4)])
        .build()
    )
    turn, router = linear(), {"weight": torch.randn(2, 4), "bias": torch.randn(2)}
    experts = [linear(), linear()]
    gate = {
        f"{name}_{k}": layer[name]
        for k, layer in enumerate([router, *experts])
        for name in ("weight", "bias")
    }
    model.load_checkpoint(rust_file(under("loop_2", turn) | under("gate_3", gate)))
    check(
        model, {"loop_1.body.linear_1.weight": turn["weight"], "gate_1.expert_1.weight": experts[1]["weight"]}
    )
    check(model, {"gate_1.router.bias": router["bias"]})


def test_a_batch_norm_has_no_counter():
    model = FlowBuilder(nn.Linear(4, 4)).through(nn.BatchNorm1d(4)).build()
    first, norm = linear(), {"weight": torch.randn(4), "bias": torch.randn(4)}
    statistics = {"running_mean": torch.randn(4), "running_var": torch.rand(4)}
    stored = under("linear_1", first) | under("batchnorm_2", norm) | under("batchnorm_2", statistics)
    report = model.load_checkpoint(rust_file(stored))
    assert report.missing == ("batchnorm1d_1.num_batches_tracked",)
    check(model, {f"batchnorm1d_1.{name}": tensor for name, tensor in (norm | statistics).items()})


class SelfAttention(nn.Module):
    def __init__(self, **options: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("options", [{}, {"kdim": 4, "vdim": 4}, {"bias": False}])
def test_attention_is_four_linear_layers(options):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4, bias=options.get("bias", True)) for _ in range(4)]
    attention = {
        f"{name}_{k}": p.detach() for k, one in enumerate(layers) for name, p in one.named_parameters()
    }
    model = FlowBuilder(SelfAttention(**options)).build()
    assert model.load_checkpoint(rust_file(under("multiheadattention_1", attention))).is_complete
    x = torch.randn(2, 3, 4)
    query, key, value = (layer(x).reshape(2, 3, 2, 2).transpose(1, 2) for layer in layers[:3])
    mixed = nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(2, 3, 4)
    torch.testing.assert_close(model(x), layers[3](mixed))


def test_a_nested_graph_is_written_in_the_order_of_its_levels():
    model = FlowBuilder(_late(3)).build()
    mapped = {"weight": torch.randn(3, 4), "bias": torch.randn(3)}
    layers = [linear(), linear(), mapped, linear()]
    stored = {f"{name}_{k}": layer[name] for k, layer in enumerate(layers) for name in ("weight", "bias")}
    model.load_checkpoint(rust_file(under("graph_1", stored)))
    check(model, {"inner.linear_3.weight": layers[3]["weight"], "inner.map_1.body.weight": mapped["weight"]})


def test_two_orders_with_the_same_shapes_are_refused():
    layers = [linear() for _ in range(4)]
    stored = {f"{name}_{k}": layer[name] for k, layer in enumerate(layers) for name in ("weight", "bias")}
    with pytest.raises(CheckpointError, match=r"several orders.*migrate_checkpoint\(stream, 'model-migrated"):
        FlowBuilder(_late(4)).build().load_checkpoint(rust_file(under("graph_1", stored)))


def _late(width: int) -> Graph:
    """The map reads an early value, so the Rust floDl runs it before the two layers created before it."""
    flow = FlowBuilder(nn.Linear(4, 4)).tag("early").through(nn.Linear(4, 4)).through(nn.Linear(4, 4))
    return flow.map(nn.Linear(4, width), batched=True).over("early").label("inner").build()


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (under("encoder", linear()) | under("linear_2", linear()), "the model has no tag 'encoder'"),
        (under("linear_1", linear()), r"1 nodes with tensors besides 0 that are tagged in both, the model 2"),
        (under("linear_1", linear()) | under("linear_2", linear(3)), r"'linear_2' has weight \(3, 3\), bias"),
    ],
)
def test_names_that_do_not_match_name_the_call_that_migrates(tmp_path: Path, stored, words):
    model = FlowBuilder(nn.Linear(4, 4)).tag("stem").through(nn.Linear(4, 4)).build()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    path = tmp_path / "old.fdl"
    save_checkpoint(path, stored, format="fdlc")
    with pytest.raises(CheckpointError, match=words) as caught:
        model.load_checkpoint(path)
    assert f"migrate_checkpoint('{path}', 'old-migrated.fdl', model.state_dict(), rename={{" in str(
        caught.value
    )
    check(model, before)


def test_the_call_in_the_error_works(tmp_path: Path):
    model = FlowBuilder(nn.Linear(4, 4)).tag("stem").through(nn.ReLU()).build()
    layer = linear()
    path = tmp_path / "old.fdl"
    save_checkpoint(path, under("encoder", layer), format="fdlc")
    with pytest.raises(CheckpointError) as caught:
        model.load_checkpoint(path)
    call = str(caught.value).split("load that: ")[1].split(" Without rename")[0].rstrip(".")
    call = call.replace("'old-migrated.fdl'", repr(str(tmp_path / "new.fdl")))
    eval(call, {"migrate_checkpoint": migrate_checkpoint, "model": model})
    assert model.load_checkpoint(tmp_path / "new.fdl").is_complete
    check(model, {"stem.weight": layer["weight"]})


def test_a_part_of_a_file_is_still_matched_by_name():
    model = FlowBuilder(nn.Linear(4, 4)).tag("stem").through(nn.Linear(4, 4)).tag("head").build()
    stem = linear()
    report = model.load_checkpoint(rust_file(under("stem", stem)), allow_missing=["head.*"])
    assert report.missing == ("head.weight", "head.bias")
    check(model, {"stem.weight": stem["weight"]})
