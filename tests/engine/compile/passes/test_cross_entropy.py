"""The cross entropy over a large vocabulary is computed by flodl's own operator."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.fx import Graph, GraphModule
from torch.nn.functional import cross_entropy

from flodl.engine.compile.passes.cross_entropy import (
    BACKWARD,
    FORWARD,
    FuseCrossEntropy,
    cross_entropy_backward,
    cross_entropy_of_rows,
)
from flodl.engine.compile.passes.matmuls.padding import AlignMatmuls

from .rewritten_programs import num_calls, rewritten

WORDS = 4099
pytestmark = [
    pytest.mark.usefixtures("passes_on_cpu"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # torch's compiler
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),
]


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def logits_of(rows: int = 6, words: int = WORDS, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(rows, words, generator=torch.Generator().manual_seed(rows + words)).mul(3).to(dtype)


def targets(rows: int = 6, words: int = WORDS) -> Tensor:
    return torch.randint(words, (rows,), generator=torch.Generator().manual_seed(rows))


def loss_of_rows(logits: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """Return the loss as the pass writes it."""
    total = cross_entropy_of_rows(logits, target, ignore_index)[0].sum()
    return total / (target != ignore_index).sum() if reduction == "mean" else total


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ignored", [[], [1, 4], [0, 1, 2, 3, 4, 5]], ids=["none", "some", "all"])
@pytest.mark.parametrize("ignore_index", [-100, 7])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_losses_and_gradients_are_those_of_torch(
    reduction: str, ignored: list[int], ignore_index: int, dtype: torch.dtype
) -> None:
    target = targets()
    target[ignored] = ignore_index
    found = []
    for mine in (True, False):
        logits = logits_of(dtype=dtype).requires_grad_()
        if mine:
            loss = loss_of_rows(logits, target, ignore_index, reduction)
        else:
            loss = cross_entropy(logits.float(), target, ignore_index=ignore_index, reduction=reduction)
        loss.backward()
        found.append((loss.detach(), logits.grad))
    assert found[0][0].dtype is torch.float32
    torch.testing.assert_close(found[0][0], found[1][0], equal_nan=True)
    torch.testing.assert_close(found[0][1], found[1][1])


def test_rows_may_lie_in_padded_memory() -> None:
    logits, target = logits_of(), targets()
    padded = nn.functional.pad(logits, (0, 5), value=torch.nan)[:, :WORDS]
    losses, log_sums = cross_entropy_of_rows(padded, target, -100)
    torch.testing.assert_close(losses, cross_entropy(logits.float(), target, reduction="none"))
    scale = torch.tensor(0.5).expand(6)
    grad = cross_entropy_backward(padded, target, log_sums, scale, -100, 4104)
    assert grad.shape == (6, 4104)
    assert grad.is_contiguous()
    assert not grad[:, WORDS:].any()
    expected = cross_entropy_backward(logits, target, log_sums, scale, -100, WORDS)
    assert torch.equal(grad[:, :WORDS], expected)


@pytest.mark.parametrize("label", [-1, WORDS])
def test_a_target_that_is_not_a_class_gives_nan(label: int) -> None:
    target = targets()
    target[2] = label
    losses, log_sums = cross_entropy_of_rows(logits_of(), target, -100)
    assert losses.isnan().tolist() == [False, False, True, False, False, False]
    grad = cross_entropy_backward(logits_of(), target, log_sums, torch.ones(6), -100, WORDS)
    assert grad.isnan().all(1).tolist() == losses.isnan().tolist()


def test_the_operators_are_registered_completely() -> None:
    logits, target = logits_of(2).requires_grad_(), targets(2)
    torch.library.opcheck(cross_entropy_of_rows, (logits, target, -100))
    log_sums, scale = torch.zeros(2), torch.ones(2)
    torch.library.opcheck(cross_entropy_backward, (logits.detach(), target, log_sums, scale, -100, 4104))


def fused(program: Callable[..., Tensor], *inputs: Tensor, dynamic: bool = False) -> Graph:
    """Trace a program, rewrite its graph, and check that it is valid and computes the same."""
    graphs: list[Graph] = []

    def rewrite(traced: GraphModule, _: object) -> Callable[..., object]:
        FuseCrossEntropy()(traced.graph)
        traced.graph.lint()
        traced.recompile()
        graphs.append(traced.graph)
        return traced.forward

    found = torch.compile(program, dynamic=dynamic, backend=rewrite)(*[each.clone() for each in inputs])
    torch.testing.assert_close(found, program(*[each.clone() for each in inputs]))
    (graph,) = graphs
    return graph


def autocast_loss(logits: Tensor, target: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return nn.CrossEntropyLoss()(logits, target)


def shifted_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Like the loss of causal language models in transformers."""
    logits = logits.view(2, 3, WORDS).float()
    labels = nn.functional.pad(target.view(2, 3), (0, 1), value=-100)
    labels = labels[..., 1:].contiguous().view(-1).to(logits.device)
    return cross_entropy(logits.view(-1, WORDS), labels, ignore_index=-100, reduction="mean")


SUPPORTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "float": lambda logits, target: cross_entropy(logits.float(), target),
    "to": lambda logits, target: cross_entropy(logits.to(torch.float32), target, reduction="sum"),
    "views": lambda logits, target: cross_entropy(
        logits.view(2, 3, WORDS).float().view(-1, WORDS), target, ignore_index=3
    ),
    "flattened": lambda logits, target: cross_entropy(logits.view(2, 3, -1).float().flatten(0, 1), target),
    "arguments by name": lambda logits, target: cross_entropy(target=target, input=logits.float()),
    "autocast": autocast_loss,
    "shifted labels": shifted_loss,
    "cast read twice": lambda logits, target: (
        cross_entropy(cast := logits.float(), target) + cast.square().mean()
    ),
    "written before the cast": lambda logits, target: cross_entropy(logits.mul_(2).float(), target),
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_loss_over_logits_in_16_bits_is_fused(name: str) -> None:
    graph = fused(SUPPORTED[name], logits_of(), targets())
    assert (num_calls(graph, FORWARD), num_calls(graph, cross_entropy)) == (1, 0)


def written_after_the_cast(logits: Tensor, target: Tensor) -> Tensor:
    cast = logits.float()
    cast[:, 3] = -1e4
    return cross_entropy(cast, target)


def rectified_in_place(logits: Tensor, target: Tensor) -> Tensor:
    cast = logits.float()
    nn.functional.relu(cast, True)
    return cross_entropy(cast, target)


def source_written_after_the_cast(logits: Tensor, target: Tensor) -> Tensor:
    cast = logits.float()
    logits += 1.5 * logits
    return cross_entropy(cast, target)


LEFT_ALONE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "float32": lambda logits, target: cross_entropy(logits.float() * 2, target),
    "16 bits in eager": lambda logits, target: cross_entropy(logits, target).float(),
    "weights": lambda logits, target: cross_entropy(
        logits.float(), target, torch.arange(WORDS, dtype=torch.float32)
    ),
    "smoothing": lambda logits, target: cross_entropy(logits.float(), target, label_smoothing=0.1),
    "rows": lambda logits, target: cross_entropy(logits.float(), target, reduction="none").mean(),
    "probabilities": lambda logits, target: cross_entropy(logits.float(), logits.float().softmax(1)),
    "positions last": lambda logits, target: cross_entropy(logits.float()[:, :, None], target[:, None]),
    "few classes": lambda logits, target: cross_entropy(logits[:, :4095].float(), target % 4095),
    "transposed": lambda logits, target: cross_entropy(logits.t().reshape(6, -1).float().log(), target),
    "written after the cast": written_after_the_cast,
    "rectified in place": rectified_in_place,
    "source written after the cast": source_written_after_the_cast,
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_other_losses_are_left_alone(name: str) -> None:
    program = LEFT_ALONE[name]
    logits = logits_of().abs() + 1 if name == "transposed" else logits_of()
    assert num_calls(fused(program, logits, targets()), FORWARD) == 0


def test_dynamic_shapes_are_left_alone() -> None:
    graph = fused(SUPPORTED["float"], logits_of(), targets(), dynamic=True)
    assert num_calls(graph, FORWARD) == 0


def test_the_gradient_is_written_into_padded_memory() -> None:
    """Both matmuls that read it share it, and a sum for a bias reads a part of it."""
    aten = torch.ops.aten

    def program(logits: Tensor, target: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        ones = torch.ones(6)
        grad = BACKWARD(logits, target, 9 * ones, ones, -100, WORDS)
        grad = aten.view(aten.view(grad, [2, 3, WORDS]), [6, WORDS])
        of_weight = aten.mm(aten.permute(grad, [1, 0]), x)
        return of_weight, aten.mm(grad, weight), aten.sum(grad, [0])

    inputs = logits_of(), targets(), logits_of(6, 16), logits_of(WORDS, 16)
    traced = rewritten(program, AlignMatmuls(), *inputs)
    (call,) = traced.graph.find_nodes(op="call_function", target=BACKWARD)
    assert call.args[-1] == 4104
    (pad,) = traced.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default)
    assert pad.args[0].op == "placeholder"  # the weight
    for ours, theirs in zip(traced(*inputs), program(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


class LanguageModel(nn.Module):
    """A layer with a large vocabulary, and its loss over a batch of positions."""

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.words = nn.Linear(16, 16), nn.Linear(16, WORDS, bias=bias)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        logits = self.words(self.body(x).tanh())
        return cross_entropy(logits.float().view(-1, WORDS), target.view(-1))


def batch() -> tuple[Tensor, Tensor]:
    target = targets(8).view(2, 4)
    target[1, 2] = -100
    return torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(1)), target


def learn(model: nn.Module, loss_of: Callable[..., Tensor]) -> list[Tensor]:
    """Return the loss and the gradients of one step."""
    model.zero_grad()
    # Inside the program, it would bypass one of the caches.
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(*batch())
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


OPTIONS = {"pre_grad_custom_pass": FuseCrossEntropy(), "joint_custom_pre_pass": AlignMatmuls()}


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
def test_a_compiled_language_model_reads_and_writes_padded_memory_without_copies(bias: bool) -> None:
    model = LanguageModel(bias=bias)
    expected = learn(model, model)
    compiled = torch.compile(model, dynamic=False, options=OPTIONS)
    with fresh_cache():
        found, (forward, backward) = run_and_get_code(learn, model, compiled)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1e-3)
    (call,) = [line for line in forward.splitlines() if f"= torch.ops.{FORWARD}(" in line]
    # With a bias, the sum is written without padding.
    assert bias or f"(8, {WORDS}), (4104, 1), 0)" in call
    (call,) = [line for line in backward.splitlines() if f"= torch.ops.{BACKWARD}(" in line]
    assert call.endswith("-100, 4104)")
    # Nothing else has the size of the gradient.
    assert f"empty_strided_cpu((8, {WORDS})" not in backward
    assert "empty_strided_cpu((8, 4104)" not in backward


@pytest.mark.slow
@pytest.mark.parametrize("timing", ["early", "late"])
def test_a_second_start_finds_the_rewritten_program_in_the_caches(timing: str) -> None:
    """In torch 2.11, passes before autograd run before the caches are searched."""
    model = LanguageModel()
    options = OPTIONS | {"pre_grad_pass_timing": timing}
    if not hasattr(torch._inductor.config, "pre_grad_pass_timing"):
        options.pop("pre_grad_pass_timing")
    found = []
    with fresh_cache():
        for _ in range(2):
            torch._dynamo.reset()
            counters.clear()
            found.append(learn(model, torch.compile(model, dynamic=False, options=dict(options))))
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    assert counters["aot_autograd"]["autograd_cache_miss"] == 0
    assert counters["inductor"]["fxgraph_cache_miss"] == counters["inductor"]["fxgraph_cache_bypass"] == 0
    assert all(map(torch.equal, *found))


def test_the_pass_has_one_cache_key() -> None:
    """Torch 2.11 pickles the pass itself."""
    one, other = FuseCrossEntropy(), FuseCrossEntropy()
    assert one.uuid() == other.uuid()
    assert pickle.dumps(one) == pickle.dumps(other)
