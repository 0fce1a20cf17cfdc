"""Export three models with named inputs and dynamic shapes, and compare what the exported programs compute.

A transformer decoder made of torch's own layers, a mixture of experts that was trained with a balancing
loss, and a model with two outputs. Each is exported with torch.export; if onnxscript and onnxruntime are
installed, also to ONNX files in the current folder, which onnxruntime then runs.
"""

import importlib.util
import logging
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from flodl import FlowBuilder, Graph, SoftmaxRouter, TrainStep, manual_seed
from flodl.nn import load_balancing_loss

HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnxscript", "onnxruntime"))
Inputs = Mapping[str, Tensor]


def decoder() -> Graph:
    flow = FlowBuilder(nn.Embedding(50, 32), input="tokens").input("encoded", "mask")
    for _ in range(2):
        layer = nn.TransformerDecoderLayer(32, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
        flow = flow.through(layer).using(memory="encoded", tgt_mask="mask")
    return flow.through(nn.Linear(32, 50)).build()


def decoder_inputs(batch: int, time: int, length: int) -> Inputs:
    mask = nn.Transformer.generate_square_subsequent_mask(time)
    return {
        "tokens": torch.randint(50, (batch, time)),
        "encoded": torch.randn(batch, length, 32),
        "mask": mask,
    }


def mixture_of_experts() -> Graph:
    experts = [nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4)]
    return (
        FlowBuilder(nn.Linear(8, 16), input="features")
        .gate(SoftmaxRouter(16, 4), experts, top_k=2, weights="routing")
        .through(nn.Linear(16, 3))
        .build()
    )


def train_balanced(model: Graph) -> None:
    def step_fn(model: Graph, features: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss = nn.functional.cross_entropy(model(features), labels)
        balance = load_balancing_loss(model.tagged("routing"), top_k=2)
        return loss + 0.05 * balance, {"balance": balance}

    step = TrainStep(model, torch.optim.AdamW(model.parameters(), lr=1e-2), step_fn)
    features = torch.randn(256, 8)
    batch = {"features": features, "labels": features[:, :3].argmax(dim=1)}
    losses = [step(**batch).item() for _ in range(30)]
    print(
        f"mixture of experts: loss {losses[0]:.3f} → {losses[-1]:.3f}, balance {step.values['balance']:.3f}"
    )


def two_outputs() -> Graph:
    return (
        FlowBuilder(nn.Linear(4, 16), input="state")
        .through(nn.Tanh())
        .split({"policy": nn.Linear(16, 2), "value": nn.Linear(16, 1)})
        .output("policy", "value")
        .build()
    )


def export(name: str, model: Graph, example: Inputs, other: Inputs, shapes: Any) -> None:
    """Export with one example, and compare the outputs for another, with other sizes."""
    model.eval()
    want = _values(model(**other))
    program = torch.export.export(model, (), dict(example), dynamic_shapes=shapes)
    error = _distance(want, _values(program.module()(**other)))
    print(f"{name}: inputs {', '.join(model.input_names)}; torch.export differs by {error:.0e}")
    if not HAS_ONNX:
        print("  ONNX is left out: onnxscript or onnxruntime is not installed")
        return
    import onnxruntime

    names = [*model.output_names] or ["output"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about itself
        logging.disable(logging.WARNING)
        onnx = torch.onnx.export(
            model, kwargs=dict(example), dynamic_shapes=shapes, output_names=names, dynamo=True, verbose=False
        )
    assert onnx is not None
    onnx.save(f"{name}.onnx")
    session = onnxruntime.InferenceSession(f"{name}.onnx")
    found = session.run(names, {one.name: other[one.name].numpy() for one in session.get_inputs()})
    print(f"  ONNX outputs {', '.join(names)} differ by {_distance(want, map(torch.from_numpy, found)):.0e}")


def _values(output: Any) -> list[Tensor]:
    return [*output.values()] if isinstance(output, dict) else [output]


def _distance(want: Any, found: Any) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(want, found))


def main() -> None:
    manual_seed(0)
    batch, time, length = (Dim(name, min=2, max=512) for name in ("batch", "time", "length"))
    shapes: Any = {
        "tokens": {0: batch, 1: time},
        "encoded": {0: batch, 1: length},
        "mask": {0: time, 1: time},
    }
    export("decoder", decoder(), decoder_inputs(2, 5, 7), decoder_inputs(3, 9, 4), shapes)

    model = mixture_of_experts()
    train_balanced(model)
    example, other = {"features": torch.randn(4, 8)}, {"features": torch.randn(9, 8)}
    export("experts", model, example, other, {"features": {0: batch}})

    example, other = {"state": torch.randn(3, 4)}, {"state": torch.randn(7, 4)}
    export("two_outputs", two_outputs(), example, other, {"state": {0: batch}})


if __name__ == "__main__":
    main()
