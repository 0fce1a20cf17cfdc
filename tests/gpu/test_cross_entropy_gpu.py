"""The kernels of the cross entropy over a large vocabulary, and a compiled step that uses them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from flodl.engine import TrainStep
from flodl.engine.compile.passes.cross_entropy import cross_entropy_backward, cross_entropy_of_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # torch's compiler
]
ROWS = 37
# The number of classes, and the elements from one row to the next.
LAYOUTS = [(50257, 50264), (50257, 50257), (32000, 32000), (4099, 4104), (4099, 4099), (4099, 4200)]


def logits_of(words: int, row_stride: int, dtype: torch.dtype) -> Tensor:
    """Return random logits, with NaN in the memory between rows."""
    source = torch.Generator("cuda").manual_seed(words)
    memory = torch.full((ROWS, row_stride), torch.nan, device="cuda", dtype=dtype)
    memory[:, :words] = 5 * torch.randn(ROWS, words, device="cuda", generator=source)
    return memory[:, :words]


def targets(words: int) -> Tensor:
    found = torch.randint(words, (ROWS,), device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    found[0], found[1], found[2:9:3] = 0, words - 1, -100
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("words", "row_stride"), LAYOUTS)
def test_the_kernels_agree_with_float64(words: int, row_stride: int, dtype: torch.dtype) -> None:
    logits, target = logits_of(words, row_stride, dtype), targets(words)
    exact = logits.double().requires_grad_()
    expected = cross_entropy(exact, target, reduction="none")
    losses, log_sums = cross_entropy_of_rows(logits, target, -100)
    torch.testing.assert_close(losses, expected.float(), rtol=2e-6, atol=2e-6)
    scale = torch.rand(ROWS, device="cuda", generator=torch.Generator("cuda").manual_seed(2))
    (wanted,) = torch.autograd.grad(expected, exact, scale.double())
    columns = -(-words // 8) * 8
    for width in {words, columns}:
        grad = cross_entropy_backward(logits, target, log_sums, scale, -100, width)
        assert grad.shape == (ROWS, width)
        assert not grad[:, words:].any()
        assert not grad[2:9:3].any()
        # One rounding; the smallest numbers of float16 are further apart.
        close = {"rtol": torch.finfo(dtype).eps * 0.52, "atol": 1e-7}
        torch.testing.assert_close(grad[:, :words].double(), wanted, **close)


def test_one_scale_for_all_rows_and_transposed_logits_are_read_correctly() -> None:
    logits, target = logits_of(4099, 4104, torch.bfloat16), targets(4099)
    expected, log_sums = cross_entropy_of_rows(logits, target, -100)
    transposed = logits.t().contiguous().t()
    torch.testing.assert_close(cross_entropy_of_rows(transposed, target, -100)[0], expected)
    one = torch.tensor(0.25, device="cuda").expand(ROWS)
    first = cross_entropy_backward(logits, target, log_sums, one, -100, 4104)
    assert torch.equal(first, cross_entropy_backward(transposed, target, log_sums, one.clone(), -100, 4104))


def test_rows_beyond_the_range_of_32_bits_are_read_correctly() -> None:
    rows, words = 44_000, 50_257
    logits = torch.zeros(rows, 50_264, device="cuda", dtype=torch.bfloat16)[:, :words]
    target = torch.arange(rows, device="cuda")
    logits[-1, rows - 1] = 20
    losses, log_sums = cross_entropy_of_rows(logits, target, -100)
    even = torch.tensor(words, dtype=torch.float64).log()
    torch.testing.assert_close(losses[:-1].double().cpu(), even.expand(rows - 1), rtol=1e-6, atol=1e-6)
    assert losses[-1] < 0.001
    grad = cross_entropy_backward(logits, target, log_sums, torch.ones_like(losses), -100, words)
    torch.testing.assert_close(grad[-2, rows - 2].item(), -1.0)
    assert abs(grad[-1, rows - 1].item()) < 0.001


@pytest.mark.parametrize("label", [-1, 4099, 1 << 40])
def test_a_target_that_is_not_a_class_gives_nan_and_reads_nothing(label: int) -> None:
    logits, target = logits_of(4099, 4104, torch.bfloat16), targets(4099)
    target[10] = label
    losses, log_sums = cross_entropy_of_rows(logits, target, -100)
    assert losses.isnan().nonzero().flatten().tolist() == [10]
    grad = cross_entropy_backward(logits, target, log_sums, torch.ones_like(losses), -100, 4104)
    assert grad.isnan().any(1).nonzero().flatten().tolist() == [10]


def test_masked_words_have_no_probability() -> None:
    logits, target = logits_of(4099, 4104, torch.bfloat16), targets(4099)
    logits[:, 100:3000] = -torch.inf
    target = torch.where(target == -100, target, target % 100)
    losses, log_sums = cross_entropy_of_rows(logits, target, -100)
    torch.testing.assert_close(losses, cross_entropy(logits.float(), target, reduction="none"))
    grad = cross_entropy_backward(logits, target, log_sums, torch.ones_like(losses), -100, 4104)
    assert grad.isfinite().all()
    assert not grad[:, 100:3000].any()


class LanguageModel(nn.Module):
    """Words, a hidden layer, and logits over the same words."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.enter, self.hidden = nn.Embedding(words, 64), nn.Linear(64, 64)
        self.exit = nn.Linear(64, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.exit(self.hidden(self.enter(tokens)).tanh())


def loss_of(model: nn.Module, tokens: Tensor, target: Tensor) -> Tensor:
    logits = model(tokens)
    return cross_entropy(logits.float().view(-1, logits.shape[-1]), target.view(-1))


@pytest.mark.parametrize("words", [4099, 8192])
def test_a_compiled_language_model_follows_eager_and_uses_the_kernels(words: int) -> None:
    runs = []
    for tier in ("eager", "compiled"):
        torch.manual_seed(0)
        model = LanguageModel(words).cuda()
        source = torch.Generator("cuda").manual_seed(1)
        tokens = torch.randint(words, (8, 33), device="cuda", generator=source)
        target = tokens[:, 1:].clone()
        target[3, 5:] = -100
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        step = TrainStep(model, optimizer, loss_of, tier=tier, precision="bf16")
        batch = tokens[:, :-1].contiguous(), target
        losses = [step(*batch) for _ in range(40)]
        assert step.tier == tier, step.report()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            step(*batch)
            torch.cuda.synchronize()
        names = " ".join(event.name for event in profiler.events())
        for kernel in ("_cross_entropy_forward", "_cross_entropy_backward"):
            assert (kernel in names) == (tier == "compiled")
        runs.append(torch.stack(losses))
    torch.testing.assert_close(runs[1], runs[0], rtol=0.05, atol=0.02)
    assert runs[1][-1] < 0.5 * runs[1][0]
