"""Models compiled with every graph pass train as they do eagerly."""

from __future__ import annotations

import collections
import uuid

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph
from torch.utils.checkpoint import checkpoint

from flodl.engine.compile.passes import pipeline as fusion
from flodl.engine.compile.passes.matmuls.batching import BatchAndSplitMatmuls

aten = torch.ops.aten
WIDTH = 64

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("passes_on_cpu"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's compiler
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class TogetherIsFast:
    """Measured times that favor batched and split-K matmuls."""

    def matmul(self, left, right) -> float:
        return 50.0

    def split_k(self, left, right, parts: int) -> float:
        return 1.0 + parts

    def batch(self, left, right, count: int, *, shared: bool, copied) -> float:
        return 0.5


class Watched(CustomGraphPass):
    """A graph pass that also counts the calls in the resulting programs."""

    def __init__(self, change: CustomGraphPass, calls: collections.Counter) -> None:
        self._change, self._calls = change, calls

    def __call__(self, graph: Graph) -> None:
        self._change(graph)
        graph.lint()
        self._calls.update(node.target for node in graph.nodes)

    def uuid(self) -> object:
        return uuid.uuid4().bytes  # never found in a cache


def learned(model: nn.Module, x: Tensor, options: dict[str, object] | None) -> list[Tensor]:
    """Return the loss, the gradients and the buffers after one step."""

    def loss_of(x: Tensor) -> Tensor:
        return model(x).square().mean()

    run = torch.compile(loss_of, dynamic=False, options=options) if options else loss_of
    torch.manual_seed(0)
    buffers = [buffer.clone() for buffer in model.buffers()]
    model.zero_grad()
    loss = run(x)
    loss.backward()
    made = [loss.detach(), *(p.grad for p in model.parameters()), *(b.clone() for b in model.buffers())]
    for buffer, before in zip(model.buffers(), buffers):
        buffer.copy_(before)
    return made


def check(model: nn.Module, x: Tensor) -> collections.Counter:
    """Compare a compiled step with an eager one, and return the calls in the compiled programs."""
    calls: collections.Counter = collections.Counter()
    last = fusion.PassSequence(fusion.DecomposeAddmm(64 << 20), BatchAndSplitMatmuls(TogetherIsFast()))  # type: ignore[arg-type]
    options = fusion.inductor_options() | {"post_grad_custom_post_pass": Watched(last, calls)}
    torch.testing.assert_close(learned(model, x, options), learned(model, x, None), rtol=1e-4, atol=1e-5)
    return calls


class Loop(nn.Module):
    """A loop that uses one layer in each iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, series: Tensor) -> Tensor:
        h = series[:, 0]
        for turn in range(series.shape[1]):
            h = h + torch.tanh(self.layer(h) + series[:, turn])
        return h


class Block(nn.Module):
    """A sum of a layer and a layer with a norm, whose backward needs sums before the batch of products."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.one, self.other = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm, self.drop = nn.BatchNorm1d(WIDTH), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(torch.relu(self.entry(x)))
        return self.drop(self.one(x) + self.norm(self.other(x)))


def test_a_loop_gets_its_gradients_from_one_matmul_and_one_sum() -> None:
    torch.manual_seed(1)
    calls = check(Loop(), torch.randn(16, 4, WIDTH))
    assert calls[aten.sum.dim_IntList] == 1


def test_a_block_with_norm_and_dropout_keeps_its_statistics_and_its_random_numbers() -> None:
    torch.manual_seed(1)
    calls = check(Block(), torch.randn(16, WIDTH))
    assert calls[aten.bmm.default] > 0


class Encoder(nn.Module):
    """Torch's own encoder, which transposes batch and positions before its attention."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True)
        # On the CPU, torch decomposes attention with dropout.
        layer.self_attn.dropout = 0.0
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def test_an_encoder_reads_its_heads_without_copies_and_draws_the_same_random_numbers() -> None:
    torch.manual_seed(1)
    calls = check(Encoder(), torch.randn(6, 10, WIDTH))
    # Queries, keys and values, and what comes back through them.
    assert calls[aten.as_strided.default] == 4


def kept(model: nn.Module, x: Tensor, options: dict[str, object]) -> int:
    """Return how many bytes a compiled forward saves for its backward."""
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        found[tensor.data_ptr()] = tensor.nbytes
        return tensor

    torch._dynamo.reset()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        torch.compile(lambda x: model(x).sum(), dynamic=False, options=options)(x)
    return sum(found.values())


def test_checkpointing_saves_no_more_than_before() -> None:
    class Whole(Encoder):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.layers, x, use_reentrant=False)

    model, x = Whole(), torch.randn(6, 10, WIDTH)
    theirs = {"fallback_random": True}
    ours = fusion.inductor_options()
    # Matmuls are measured on a device.
    del ours["post_grad_custom_post_pass"]
    assert kept(model, x, ours) <= kept(model, x, theirs)


def test_gradients_of_a_norm_that_mutates_its_buffers_equal_eagers() -> None:
    """Torch's compiler computes them from the buffers after the forward."""
    torch.manual_seed(1)
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))
    model = nn.Sequential(layer, nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    check(model, torch.randn(16, WIDTH))


class Checkpointed(nn.Module):
    """Matmuls that could run together, and random numbers that a checkpoint draws twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.drop = nn.Dropout(0.3)

    def block(self, x: Tensor) -> Tensor:
        return self.drop(torch.relu(self.one(x))) + self.other(self.drop(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.block, x, use_reentrant=False))


def test_checkpointing_draws_random_numbers_in_eager_order() -> None:
    torch.manual_seed(1)
    check(Checkpointed(), torch.randn(16, WIDTH))
