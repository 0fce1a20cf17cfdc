"""Graphs exported to ONNX with named inputs and dynamic shapes give the same numbers there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import FlowBuilder, Graph, SoftmaxRouter

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
# torch's exporter warns about itself.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::Warning")]


def check(
    model: Graph, example: Mapping[str, Tensor], other: Mapping[str, Tensor], shapes: Any, path: Path
) -> None:
    """Export with one example, and compare the outputs for another, with other sizes."""
    names = [*model.output_names] or ["output"]
    program = torch.onnx.export(
        model.eval(),
        kwargs=dict(example),
        dynamic_shapes=shapes,
        output_names=names,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.save(path)
    session = onnxruntime.InferenceSession(path)
    assert [one.name for one in session.get_inputs()] == [*model.input_names]
    assert [one.name for one in session.get_outputs()] == names
    found = session.run(None, {name: value.numpy() for name, value in other.items()})
    want = model(**other)
    for got, value in zip(found, want.values() if model.output_names else [want]):
        torch.testing.assert_close(torch.from_numpy(got), value, atol=1e-5, rtol=1e-4)


def test_a_decoder_of_stock_modules(tmp_path):
    def layer() -> nn.Module:
        return nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def inputs(batch: int, time: int, length: int) -> dict[str, Tensor]:
        mask = nn.Transformer.generate_square_subsequent_mask(time)
        return {
            "tokens": torch.randint(20, (batch, time)),
            "encoded": torch.randn(batch, length, 16),
            "mask": mask,
        }

    flow = FlowBuilder(nn.Embedding(20, 16), input="tokens").input("encoded", "mask")
    for _ in range(2):
        flow = flow.through(layer()).using(memory="encoded", tgt_mask="mask")
    model = flow.through(nn.Linear(16, 20)).build()
    batch, time, length = (torch.export.Dim(name, min=2, max=64) for name in ("batch", "time", "length"))
    shapes = {"tokens": {0: batch, 1: time}, "encoded": {0: batch, 1: length}, "mask": {0: time, 1: time}}
    check(model, inputs(2, 5, 7), inputs(3, 9, 4), shapes, tmp_path / "decoder.onnx")


def test_a_mixture_of_experts(tmp_path):
    experts = [nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4)]
    flow = FlowBuilder(nn.Linear(6, 8), input="features")
    flow = flow.gate(SoftmaxRouter(8, 4), experts, top_k=2, weights="routing").through(nn.Linear(8, 3))
    model = flow.tag("logits").output("logits", "routing").build()
    shapes = {"features": {0: torch.export.Dim("batch", min=2, max=64)}}
    check(
        model, {"features": torch.randn(4, 6)}, {"features": torch.randn(9, 6)}, shapes, tmp_path / "moe.onnx"
    )


def test_a_model_with_two_outputs(tmp_path):
    flow = FlowBuilder(nn.Linear(4, 8), input="state").through(nn.Tanh())
    model = (
        flow.split({"policy": nn.Linear(8, 2), "value": nn.Linear(8, 1)}).output("policy", "value").build()
    )
    shapes = {"state": {0: torch.export.Dim("batch", min=2, max=64)}}
    check(model, {"state": torch.randn(3, 4)}, {"state": torch.randn(7, 4)}, shapes, tmp_path / "two.onnx")


def test_a_loop_that_cannot_be_exported_says_masked(tmp_path):
    model = FlowBuilder().loop_body(torch.tanh).until_cond(lambda x: 0.5 - x.abs().max(), max_iter=3).build()
    with pytest.raises(Exception, match="Pass masked=True to while_cond or until_cond"):
        torch.onnx.export(model, (torch.ones(2, 2),), dynamo=True, verbose=False)
