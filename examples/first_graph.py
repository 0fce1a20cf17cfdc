"""A first graph: build it, run it, inspect it, draw it.

Shows a chain with a residual, two branches, a loop and a gate; the names of its parameters; how to read a
tagged value; the generated Python code; and what an error looks like. Writes first_graph.svg to the current
folder.
"""

import torch
from torch import nn

from flodl import FlowBuilder, Graph, GraphError, SoftmaxRouter, manual_seed

WIDTH = 16


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))


def build() -> Graph:
    return (
        FlowBuilder(nn.Linear(4, WIDTH)).tag("entry")
        .also(block())  # stream + block(stream)
        .split([block(), block()]).merge("mean")  # two branches, averaged
        .loop_body(block()).for_n(3).tag("refined")  # the same block three times
        .gate(SoftmaxRouter(WIDTH, 2), [block(), block()]).using("entry")  # the router sees "entry" too
        .through(nn.Linear(WIDTH, 2)).tag("output")
        .label("first")
        .build(example=torch.zeros(1, 4))  # checks every shape without computing anything
    )  # fmt: skip


def main() -> None:
    manual_seed(0)
    model = build()
    output = model(torch.randn(8, 4))
    print(f"output {tuple(output.shape)}, refined {tuple(model.tagged('refined').shape)}")

    print("\nTree:\n" + model.tree_summary())
    print("\nSome parameters:", *list(model.state_dict())[:3], "refined.body.0.weight", "…")
    print("\nGenerated code:\n" + model.code)

    print("A layer with the wrong shape is detected before the first batch:")
    try:
        FlowBuilder(nn.Linear(4, 8)).through(nn.GELU()).through(nn.Linear(16, 2)).build(
            example=torch.zeros(1, 4)
        )
    except GraphError as error:
        print(f"  {type(error).__name__}: {error}")

    model.svg("first_graph.svg")
    print("\nThe diagram is in first_graph.svg. Open it in a browser.")


if __name__ == "__main__":
    main()
