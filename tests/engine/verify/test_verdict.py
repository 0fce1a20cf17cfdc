"""Whether a candidate may replace eager: clear differences, and windows that were only unlucky."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from torch import nn

from flodl.engine import TrainStep
from flodl.engine.internals import body_of


@pytest.fixture
def off_by_luck(monkeypatch):
    """Let compiled code be wrong by a factor that the batch contains and eager ignores."""

    def compile_badly(function, **_):
        def compiled(model, x, luck):
            return function(model, x, luck) * (1 + luck[0])

        return compiled

    monkeypatch.setattr(torch, "compile", compile_badly)


def trained(lucks, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = TrainStep(
        model, optimizer, lambda model, x, luck: model(x).square().mean(), tier="compiled", **settings
    )
    # The trial starts with the fourth update.
    for luck in [0.0] * 3 + lucks:
        step(torch.randn(8, 16), torch.full((8,), luck))
    return step


@pytest.mark.parametrize(
    ("lucks", "words"),
    [
        ([0.0, 0.0], "gradients within 0.001 of eager's over 2 updates"),
        ([0.003, 0.0, 0.0, 0.0], "gradients within 0.001 of eager's over 3 of 4 updates"),
        ([0.0, 0.003, 0.003, 0.0, 0.0], "gradients within 0.001 of eager's over 3 of 5 updates"),
    ],
    ids=str,
)
def test_the_majority_of_windows_decides_if_some_were_unlucky(off_by_luck, lucks, words):
    assert trained(lucks[:-1]).tier == "eager"
    step = trained(lucks)
    assert (step.tier, step.report().reason) == ("compiled", words)


@pytest.mark.parametrize(
    ("lucks", "off"),
    [([0.003, 0.003, 0.003], "0.003"), ([0.0, 0.003, 0.003, 0.003], "0.003"), ([0.02], "0.02")],
    ids=str,
)
def test_too_many_unlucky_windows_or_one_clear_difference_are_refused(off_by_luck, lucks, off):
    assert "differs" not in trained(lucks[:-1]).report().reason
    step = trained(lucks)
    assert step.tier == "eager"
    assert step.report().reason == (
        f"the compiled step differs from eager: the gradients are off by {off} of their norm"
    )


def test_the_refusal_says_how_far_both_are_from_exact_if_eager_rounds_too(off_by_luck):
    told = trained([1.0], precision="bf16").report().reason
    start = "the compiled step differs from eager: the gradients are off by 1 of their norm from eager's; "
    assert told.startswith(f"{start}from exact ones by 1, eager's by 0.0")


@pytest.fixture
def exactly(monkeypatch):
    """Let compiled code compute the same as `loosely`, without its rounding."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda model, x: model(x).square().mean())


def loosely(model, x):
    # This leaves about two digits of each value.
    return ((model(x) + 100_000) - 100_000).square().mean()


def trained_loosely(step_fn, tier):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    step = TrainStep(model, optimizer, step_fn, tier=tier)
    losses = [step(torch.randn(8, 16)) for _ in range(5)]
    return step, [*losses, *model.state_dict().values(), *(p.grad for p in model.parameters())]


def test_if_float32_is_imprecise_both_are_compared_with_float64(exactly):
    step, ours = trained_loosely(loosely, "compiled")
    assert step.tier == "compiled", step.report()
    assert re.match(r"gradients .*e-0[78] from exact ones, eager's 0\.0", step.report().reason)
    # The comparison has left no trace.
    _, eagers = trained_loosely(loosely, "eager")
    assert all(map(torch.equal, ours, eagers))
    assert {value.dtype for value in ours} == {torch.float32, torch.int64}


def test_a_step_that_cannot_run_in_float64_is_judged_without_it(exactly):
    def by_itself(model, x):
        return loosely(model, x.float())

    step, ours = trained_loosely(by_itself, "compiled")
    assert step.tier == "eager"
    assert "from exact ones" not in step.report().reason
    _, eagers = trained_loosely(by_itself, "eager")
    assert all(map(torch.equal, ours, eagers))


def test_a_step_that_draws_other_numbers_in_float64_is_judged_without_it(exactly):
    def drawing(model, x):
        return loosely(model, x + torch.randn_like(x) * (x.dtype == torch.float64))

    step, ours = trained_loosely(drawing, "compiled")
    assert step.tier == "eager"
    _, eagers = trained_loosely(drawing, "eager")
    assert all(map(torch.equal, ours, eagers))


class Parts(nn.Module):
    """A part with large gradients and one with small ones, and buffers that each step updates."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.large, self.small = nn.Linear(4, 1), nn.Linear(4, 1)
        self.register_buffer("seen", torch.full((4,), 100.0))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("lowest", torch.tensor([torch.inf, 0.0]))


def in_parts(model, x, *, rate=0.01, calls=1, share=1.0, shown=1.0, loss=1.0, lower=1.0, rows=1.0):
    with torch.no_grad():
        model.seen.lerp_(x.mean(0), rate)
        model.calls.add_(calls)
        model.lowest[1] -= lower
    large = (model.large(x) - 5000).square().mean()
    small = model.small(x).square().mean()
    small = share * small + (1 - share) * small.detach()
    total = large + small
    shown = {"small": shown * small.detach(), "rows": rows * x.sum(1), "which": x.argmax(1)}
    return total + (loss - 1) * total.detach(), shown


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"rate": 0.02}, "the buffer seen is off by 1 of its size"),
        ({"calls": 2}, "the buffer calls is off by 1 of its size"),
        ({"lower": 3.0}, "the buffer lowest is off by 2 of its size"),
        ({"rows": 3.0}, "the value 'rows' is off by 2 of its size"),
        ({"share": 0.0}, "the gradient of small.weight is off by"),
        ({"shown": 1.1}, "the value 'small' is off by 0.1 of its size"),
        ({"loss": 1.1}, "the loss is off by 0.1 of its size"),
    ],
    ids=str,
)
def test_a_wrong_result_in_any_part_of_a_step_is_refused(monkeypatch, fault, told):
    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda model, x: in_parts(model, x, **fault))
    model = Parts()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = TrainStep(model, optimizer, in_parts, tier="compiled")
    for _ in range(8):
        step(torch.randn(8, 4))
    assert step.tier == "eager"
    assert step.report().reason.startswith(f"the compiled step differs from eager: {told}")


def test_gradients_that_consist_of_rounding_errors_may_differ(monkeypatch):
    """The exact gradient of a bias before a norm is zero."""

    def other_rounding(function, **_):
        def compiled(model, x):
            with torch.no_grad():
                order = torch.randperm(len(x), generator=torch.Generator().manual_seed(len(x)))
            return function(model, x[order])

        return compiled

    monkeypatch.setattr(torch, "compile", other_rounding)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = TrainStep(model, optimizer, lambda model, x: model(x).square().mean(), tier="compiled")
    for _ in range(6):
        step(torch.randn(64, 8))
    assert step.tier == "compiled", step.report()


def one_batch():
    """Return a model, its optimizer and a batch to memorize, always with the same random numbers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 2))
    x, y = torch.randn(4, 8), torch.randn(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.2), x, y


@functools.cache
def memorized_weights(step_fn):
    """Train on one batch until its gradients are rounding errors, which takes seconds."""
    model, optimizer, x, y = one_batch()
    eager = TrainStep(model, optimizer, step_fn, tier="eager")
    for _ in range(1500):
        loss = eager(x, y)
    assert loss < 1e-12
    return model.state_dict()


def memorized(step_fn, compiled, monkeypatch):
    """Try a compiled step with a model whose gradients are rounding errors."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled)
    trained = memorized_weights(step_fn)
    model, optimizer, x, y = one_batch()
    model.load_state_dict(trained)
    step = TrainStep(model, optimizer, step_fn, tier="compiled")
    for _ in range(6):
        step(x, y)
    return step


def squared_error(model, x, y):
    return (model(x) - y).square().mean()


def in_another_order(model, x, y):
    first, gelu, last = model
    hidden = gelu(first.bias + x.flip(1) @ first.weight.flip(1).T).flip(1)
    return (last.bias + hidden @ last.weight.flip(1).T - y).square().mean()


def test_a_model_that_has_memorized_its_batch_is_compiled(monkeypatch):
    step = memorized(squared_error, in_another_order, monkeypatch)
    words = "gradients that are rounding errors; within 0.001 of eager's at other weights over 2 updates"
    assert (step.tier, step.report().reason) == ("compiled", words)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda model, x, y: 2 * in_another_order(model, x, y),
        lambda model, x, y: -in_another_order(model, x, y),
        lambda model, x, y: in_another_order(model, x, y).detach() + 0 * squared_error(model, x, y),
        lambda model, x, y: squared_error(model, x, y) + 1e-4 * model(x).mean(),
    ],
    ids=["doubled", "negated", "zero", "another term"],
)
def test_a_wrong_gradient_is_found_in_a_model_that_has_memorized_its_batch(monkeypatch, wrong):
    step = memorized(squared_error, wrong, monkeypatch)
    assert step.tier == "eager"
    assert "the compiled step differs from eager: the gradients are off by" in step.report().reason


class Layer(nn.Module):
    """With batch norm and bfloat16, rounding errors grow from layer to layer of the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64)

    def forward(self, x, *, num_sums=1):
        products = (
            nn.functional.linear(*parts)
            for parts in zip(x.chunk(num_sums, 1), self.linear.weight.chunk(num_sums, 1))
        )
        return self.norm(sum(products)).relu()


def chaotic(layers, x, y, *, num_sums=1, change=lambda hidden, place: hidden):
    *inner, last = layers
    hidden = x
    for place, layer in enumerate(inner):
        hidden = change(layer(hidden, num_sums=num_sums), place)
    return nn.functional.cross_entropy(last(hidden).float(), y)


def trained_chaotically(compiled, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled)
    torch.manual_seed(0)
    layers = nn.Sequential(*(Layer() for _ in range(16)), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-4)
    step = TrainStep(layers, optimizer, chaotic, tier="compiled", precision="bf16")
    for _ in range(10):
        step(torch.randn(32, 64), torch.randint(8, (32,)))
    return step


def test_gradients_that_are_mostly_rounding_errors_are_compared_by_direction(monkeypatch):
    step = trained_chaotically(lambda *batch: chaotic(*batch, num_sums=2), monkeypatch)
    assert step.tier == "compiled", step.report()
    assert "gradients that are mostly rounding errors, as eager's are, in the same direction" in (
        step.report().reason
    )


def halved(hidden, place):
    return hidden if place != 8 else 0.5 * hidden + 0.5 * hidden.detach()


def without_a_layer(hidden, place):
    return hidden if place != 4 else hidden.detach()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda *batch: -chaotic(*batch, num_sums=2),
        lambda *batch: chaotic(*batch, num_sums=2).detach() + 0 * chaotic(*batch),
        lambda *batch: chaotic(*batch, num_sums=2, change=halved),
        lambda *batch: chaotic(*batch, num_sums=2, change=without_a_layer),
    ],
    ids=["negated", "zero", "halved", "without the first layers"],
)
def test_a_wrong_gradient_is_found_among_rounding_errors(monkeypatch, wrong):
    step = trained_chaotically(wrong, monkeypatch)
    assert step.tier == "eager"
    assert "the compiled step differs from eager" in step.report().reason


@pytest.mark.parametrize("part", ["large", "small"])
def test_nan_gradients_are_refused(monkeypatch, part):
    class Spoiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight):
            return weight.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * torch.nan

    def spoiled(model, x):
        layer = getattr(model, part)
        wrong = nn.functional.linear(x, Spoiled.apply(layer.weight), layer.bias) - layer(x)
        loss, values = in_parts(model, x)
        return loss + wrong.sum(), values

    monkeypatch.setattr(torch, "compile", lambda function, **_: spoiled)
    model = Parts()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=1e-9), in_parts, tier="compiled")
    for _ in range(8):
        step(torch.randn(8, 4))
    assert step.tier == "eager", step.report()
    assert "differs from eager" in step.report().reason


def test_a_run_in_float64_keeps_the_memory_that_recordings_write_to(exactly):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=1e-3), loosely, tier="compiled")
    step(torch.randn(8, 16))
    statistics = body_of(step).undo.at_window
    before = statistics.copies
    for _ in range(5):
        step(torch.randn(8, 16))
    assert step.tier == "compiled", step.report()
    assert before
    assert [*map(id, statistics.copies)] == [*map(id, before)]


class Cached(nn.Module):
    """A model with a table in the dtype of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(16, 1), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None or self.table.dtype != x.dtype:
            self.table = torch.linspace(0, 1, 16, dtype=x.dtype)
        return self.layer(x + self.table)


def test_changes_made_only_by_the_float64_run_are_restored(exactly):
    torch.manual_seed(0)
    model = Cached()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=1e-3), loosely, tier="compiled")
    step(torch.randn(8, 16))
    table = model.table
    for _ in range(5):
        step(torch.randn(8, 16))
    assert step.tier == "compiled", step.report()
    assert model.table is table


def test_hooks_on_gradient_accumulation_keep_working_during_a_trial(exactly):
    torch.manual_seed(0)
    model = nn.Linear(16, 1)
    # On the node that accumulates the gradient, as distributed training does.
    node = model.weight.expand_as(model.weight).grad_fn.next_functions[0][0]
    heard = []
    node.register_hook(lambda *_: heard.append(1))
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=1e-3), loosely, tier="compiled")
    for _ in range(8):
        heard.clear()
        step(torch.randn(8, 16))
        assert heard


@pytest.mark.parametrize("dropped", [0.0, 0.1])
def test_equal_random_numbers_allow_the_float64_comparison(monkeypatch, dropped: float):
    def exactly_dropped(model, x):
        return nn.functional.dropout(model(x), dropped, training=True).square().mean()

    def loosely_dropped(model, x):
        out = nn.functional.dropout(model(x), dropped, training=True)
        return ((out + 100_000) - 100_000).square().mean()

    monkeypatch.setattr(torch, "compile", lambda function, **_: exactly_dropped)
    step, _ = trained_loosely(loosely_dropped, "compiled")
    assert step.tier == "compiled", step.report()


def test_a_wrong_step_is_refused_even_if_float64_draws_other_numbers(monkeypatch):
    def noisily(model, x):
        return model(x + 0.05 * torch.randn_like(x)).square().mean()

    def wrongly(model, x):
        loss = noisily(model, x)
        return 1.03 * loss - 0.03 * loss.detach()

    monkeypatch.setattr(torch, "compile", lambda function, **_: wrongly)
    step, _ = trained_loosely(noisily, "compiled")
    assert step.tier == "eager", step.report()
    assert "differs from eager: the gradients are off by 0.03" in step.report().reason


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64, torch.bool])
def test_buffers_of_any_dtype_are_compared(monkeypatch, dtype):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    model = nn.Linear(16, 1)
    model.register_buffer("kept", torch.ones(3).to(dtype))
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=1e-3),
        lambda m, x: m(x).square().mean(),
        tier="compiled",
    )
    for _ in range(6):
        step(torch.randn(8, 16))
    assert step.tier == "compiled", step.report()


@pytest.mark.parametrize(("off", "tier"), [(3e-7, "compiled"), (3e-6, "eager")])
def test_a_value_may_differ_as_much_as_the_last_bits_of_the_weights_change_it(monkeypatch, off, tier):
    """Eager is exact here, so its own error cannot be the tolerance."""

    def near_zero(model, x, off=0.0):
        weights = model.weight.flatten()
        return (model(x) - 1).square().mean(), {"near_zero": weights.detach().sum() - 5 + off}

    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda model, x: function(model, x, off))
    model = nn.Linear(5, 1, bias=False)
    nn.init.ones_(model.weight)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.0), near_zero, tier="compiled")
    for _ in range(6):
        step(torch.randn(8, 5))
    assert step.tier == tier, step.report()


def test_a_perturbation_restores_weights_and_random_numbers(monkeypatch):
    def off_in_a_value(function, **_):
        def compiled(model, x):
            loss, values = function(model, x)
            return loss, {name: 1.02 * value for name, value in values.items()}

        return compiled

    def named(model, x):
        loss = model(x).square().mean()
        return loss, {"half": loss.detach() / 2}

    def trained_so(tier):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1))
        step = TrainStep(model, torch.optim.Adam(model.parameters()), named, tier=tier)
        losses = [float(step(torch.randn(8, 8))) for _ in range(10)]
        return losses, [*model.parameters()], step

    eagers, wanted, _ = trained_so("eager")
    monkeypatch.setattr(torch, "compile", off_in_a_value)
    losses, weights, step = trained_so("compiled")
    assert "the value 'half' is off by 0.02" in step.report().reason
    assert losses == eagers
    assert all(map(torch.equal, weights, wanted))
