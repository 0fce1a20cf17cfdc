"""Models with every construct, to draw and to time."""

from torch import nn

from flodl import ArgmaxSelector, FixedSelector, FlowBuilder, Graph, LearnedHalt, SoftmaxRouter, ThresholdHalt

from .nodes import Blend, Remember, double


def everything() -> Graph:
    """Every kind of node once, with references, a carried value and a function."""
    return (
        FlowBuilder(nn.Linear(4, 8))
        .tag("entry")
        .input("ctx")
        .through(nn.BatchNorm1d(8))
        .through(Blend())
        .using("ctx")
        .fork(nn.Linear(8, 2))
        .tag("aux")
        .split([nn.Linear(8, 8), double])
        .tag_group("head")
        .merge("mean")
        .loop_body(nn.Linear(8, 8))
        .for_n(3)
        .tag("refined")
        .gate(SoftmaxRouter(8, 2), [nn.Linear(8, 8), nn.Identity()])
        .using("entry")
        .switch(FixedSelector(1), [nn.Linear(8, 8), nn.Dropout(0.5)])
        .map(nn.Linear(2, 2))
        .slices(4)
        .through(Remember())
        .using("memory")
        .through(nn.Tanh())
        .tag("memory")
        .also(nn.Linear(8, 8))
        .label("everything")
        .build()
    )


def tree() -> Graph:
    """Graphs in graphs: with a label, without one, in a loop, in a gate and in a switch."""
    block = FlowBuilder(nn.LayerNorm(8)).also(nn.Linear(8, 8)).tag("hidden").build()
    encoder = FlowBuilder(nn.Linear(4, 8)).through(block).label("encoder").build()
    step = FlowBuilder().also(nn.Linear(8, 8)).label("step").build()
    expert = FlowBuilder(nn.Linear(8, 8)).through(nn.GELU()).build()
    reader = FlowBuilder(nn.Linear(8, 8)).input("ctx").through(Blend()).using("ctx").label("reader").build()
    return (
        FlowBuilder(encoder)
        .tag("ctx")
        .loop_body(step)
        .until_cond(LearnedHalt(8), max_iter=4)
        .gate(SoftmaxRouter(8, 2), [expert, nn.Identity()])
        .switch(ArgmaxSelector(8, 2), [nn.Linear(8, 8), FlowBuilder(nn.ReLU()).build()])
        .loop_body(nn.Linear(8, 8))
        .while_cond(ThresholdHalt(100.0), max_iter=2)
        .through(reader)
        .using("ctx")
        .build()
    )
