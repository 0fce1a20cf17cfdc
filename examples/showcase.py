"""Every method of the builder in one model, with a short training run.

The model demonstrates features and solves no real problem: residuals, a side branch, parallel heads, maps
over slices and rows, loops with a fixed count, with a threshold and with a learned halt, a gate, a switch,
a memory carried from call to call, and subgraphs in most of them. Prints the tree, a line per epoch, and
the trends.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from flodl import FlowBuilder, Graph, LearnedHalt, SoftmaxRouter, ThresholdHalt, manual_seed
from flodl.core.formats import format_duration
from flodl.nn import Reshape, StateAdd
from flodl.optim import CosineScheduler, apply, clip_grad_norm

HIDDEN = 8
EPOCHS, STEPS = 5, 4


class Blend(nn.Module):
    """Mix the stream with a context that is passed by name."""

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, ctx: Tensor) -> Tensor:
        return self.share * x + (1 - self.share) * ctx


class Fade(nn.Module):
    """Scale the stream down a little more at every call, until the state is reset."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self._calls += 1
        return x * 0.99**self._calls

    def reset_state(self) -> None:
        self._calls = 0


def strong(x: Tensor, refined: Tensor) -> Tensor:
    """Select branch 1 for the batch when the refined values have grown large."""
    return (refined.amax() > 5).long()


def evidence(x: Tensor) -> Tensor:
    return x.log_softmax(dim=1).sum(dim=1, keepdim=True)


def head() -> Graph:
    return FlowBuilder(nn.Linear(HIDDEN, HIDDEN)).through(nn.LayerNorm(HIDDEN)).build()


def build() -> Graph:
    spectral = FlowBuilder(nn.Linear(HIDDEN, 4)).through(torch.sin).tag("waves").label("spectrum").build()
    scale = FlowBuilder(nn.Linear(2, 2)).through(nn.Tanh()).label("scale").build()
    bounds = (
        FlowBuilder()
        .split({"low": torch.amin, "high": torch.amax})
        .output("low", "high")
        .label("range")
        .build()
    )
    norm = nn.BatchNorm1d(HIDDEN)
    refine = FlowBuilder(nn.Linear(HIDDEN, HIDDEN)).through(nn.SiLU()).through(norm).label("refine").build()
    deep = FlowBuilder(nn.Linear(HIDDEN, HIDDEN)).through(nn.ReLU()).label("deep").build()
    return (
        FlowBuilder(nn.Linear(2, HIDDEN)).input("ctx").tag("input")
        .through(nn.GELU()).through(nn.LayerNorm(HIDDEN)).through(nn.RMSNorm(HIDDEN)).through(Blend()).using("ctx")
        .fork(spectral).tag("spectral").fork(bounds).tag("bounds")
        .split([head(), head()]).merge("mean")
        .also(nn.Linear(HIDDEN, HIDDEN))
        .also_with(nn.Identity(), nn.Linear(HIDDEN, HIDDEN)).through(nn.Dropout(0.1))
        .map(scale).slices(4)
        .through(Reshape(-1, 4)).map(nn.Linear(4, 4)).each().tag("halves")
        .map(nn.Linear(4, 4)).over("halves").map(nn.Tanh(), batched=True).each().through(Reshape(-1, HIDDEN))
        .through(Fade())
        .loop_body(refine).for_n(2).tag("refined")
        .gate(SoftmaxRouter(HIDDEN, 2), [nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)]).using("input")
        .switch(strong, [nn.Linear(HIDDEN, HIDDEN), deep]).using("refined")
        .through(StateAdd()).using("memory").tag("memory")
        .loop_body(nn.Linear(HIDDEN, HIDDEN)).while_cond(ThresholdHalt(100.0), max_iter=5)
        .loop_body(nn.Linear(HIDDEN, HIDDEN)).until_cond(LearnedHalt(HIDDEN), max_iter=7).tag("settled")
        .through(evidence).tag("_evidence").through(nn.Linear(1, HIDDEN))
        .split([nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)]).tag_group("final_heads").merge("add")
        .through(nn.Linear(HIDDEN, 2)).tag("output")
        .internal("halves").label("showcase")
        .build(example=(torch.zeros(2, 2), torch.zeros(2, HIDDEN)))
    )  # fmt: skip


def main() -> None:
    manual_seed(0)
    model = build()
    print(model.tree_summary())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = apply(CosineScheduler(1e-3, 1e-5, EPOCHS * STEPS), optimizer)
    points, context = torch.randn(16, 2), torch.randn(16, HIDDEN)
    targets = torch.stack([points.sum(1), points.prod(1)], dim=1)
    for epoch in range(1, EPOCHS + 1):
        for _ in range(STEPS):
            loss = mse_loss(model(points, ctx=context), targets)
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm(model, 1.0)
            model.record("loss", loss)
            model.record("lr", schedule.lr)
            optimizer.step()
            schedule.step()
            model.collect("final_heads", "spectrum.waves", reduce="norm")
            model.end_step()
        model.end_epoch()
        metrics = model.latest_metrics()
        left = format_duration(model.eta(EPOCHS))
        print(f"epoch {epoch}  loss {metrics['loss']:.4f}  lr {metrics['lr']:.6f}  {left} left")
    halting = torch.stack(model.traces("settled.halt")).mean(dim=1)
    print("improving:", model.trend("loss").improving(EPOCHS))
    print(
        "probability of stopping after iteration 1 to 7:",
        " ".join(f"{probability:.2f}" for probability in halting.tolist()),
    )


if __name__ == "__main__":
    main()
