"""A trial needs little more memory than eager training, and leaves nothing behind."""

from __future__ import annotations

import gc
import itertools
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flodl import TrainStep
from flodl.engine.state import copies
from flodl.engine.state.copies import copies_of
from flodl.engine.verify.float64 import in_float64
from flodl.engine.verify.reruns import with_activations_on_host

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


class Classifier(nn.Module):
    """A wide model: its state is about as large as its activations."""

    def __init__(self) -> None:
        super().__init__()
        widths = [1024, 4096, 4096, 4096, 10]
        self.layers = nn.ModuleList(nn.Linear(n, m) for n, m in itertools.pairwise(widths))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
        return x


def peak_of(model_class: type[nn.Module], batch_size: int, *, tier: str) -> tuple[int, int]:
    """Train until the tier is reached; return the peak and what stays, in bytes."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_reserved()
    torch.manual_seed(0)
    model = model_class().cuda()
    x, y = torch.randn(batch_size, 1024, device="cuda"), torch.randint(10, (batch_size,), device="cuda")
    step = TrainStep(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True),
        lambda model, x, y: cross_entropy(model(x), y),
        clip_norm=1.0,
        tier=tier,
    )
    for _ in range(20):
        step(x, y)
    assert step.tier == tier, step.report().reason
    torch.cuda.synchronize()
    return torch.cuda.max_memory_reserved() - start, torch.cuda.memory_reserved() - start


@pytest.mark.parametrize("tier", ["captured", "compiled"])
def test_a_trial_needs_little_more_memory_than_eager(tier: str) -> None:
    eager, _ = peak_of(Classifier, 16384, tier="eager")
    peak, kept = peak_of(Classifier, 16384, tier=tier)
    # What a recording adds does not grow with the model: another stream, with workspaces of its own.
    assert peak <= 1.3 * eager + (128 << 20)
    assert kept <= 1.3 * eager


def test_a_run_in_float64_keeps_its_activations_on_the_host() -> None:
    layers = [layer for _ in range(24) for layer in (nn.Linear(256, 256), nn.GELU())]
    model = nn.Sequential(*layers).cuda()
    body = SimpleNamespace(model=model, parameters=[*model.parameters()])
    x = torch.randn(1 << 16, 256, device="cuda")

    def grads() -> list[torch.Tensor]:
        with in_float64(body, []):
            model(x.double()).sum().backward()
            return [parameter.grad.clone() for parameter in model.parameters()]

    expected = grads()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = with_activations_on_host(grads, offload=True)
    # One activation takes 128 MB, and 48 are saved.
    assert torch.cuda.max_memory_allocated() - before < 1 << 30
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("tier", ["captured", "compiled"])
def test_only_the_recording_in_use_keeps_workspaces_for_matmuls(tier: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1)).cuda()
    step = TrainStep(
        model, torch.optim.Adam(model.parameters()), lambda model, x: model(x).square().mean(), tier=tier
    )
    x = torch.randn(1024, 256, device="cuda")
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    losses = [step(x) for _ in range(30)]
    assert step.tier == tier, step.report().reason
    gc.collect()
    torch.cuda.empty_cache()
    # Forward and backward run in threads of their own, each with a workspace of 32 MB.
    assert torch.cuda.memory_reserved() - before < 100 << 20
    # Replays do not depend on memory that was given back.
    others = [torch.full((1 << 22,), float("nan"), device="cuda") for _ in range(8)]
    step(x)
    assert torch.stack([*losses, step(x)]).isfinite().all()
    assert all(other.isnan().all() for other in others)


def test_large_states_are_copied_to_the_host_with_their_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "MAX_DEVICE_BYTES", 0)
    state = {
        "matrix": torch.randn(64, 32, device="cuda"),
        "images": torch.randn(2, 3, 4, 5, device="cuda").to(memory_format=torch.channels_last),
        "number": torch.tensor(3.0, device="cuda"),
        "host": torch.ones(2),
    }
    copied = copies_of(state)
    assert {name: copy.device.type for name, copy in copied.items()} == dict.fromkeys(state, "cpu")
    for name, tensor in state.items():
        assert torch.equal(copied[name], tensor.cpu())
        assert copied[name].stride() == tensor.stride()
        assert copied[name].data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize("tier", ["captured", "compiled"])
def test_a_trial_with_copies_on_the_host_changes_no_numbers(
    tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def losses() -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1)).cuda()
        step = TrainStep(
            model, torch.optim.Adam(model.parameters(), lr=1e-2), lambda m, x: m(x).square().mean(), tier=tier
        )
        x = torch.randn(32, 8, device="cuda")
        found = [step(x).item() for _ in range(12)]
        assert step.tier == tier, step.report().reason
        return found

    expected = losses()
    monkeypatch.setattr(copies, "MAX_DEVICE_BYTES", 0)
    assert losses() == expected


def test_a_step_that_fills_most_of_the_device_is_promoted_twice() -> None:
    """Recordings are dropped while the compiled step is tried: eager needs their memory."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 4096), *(nn.GELU() for _ in range(12)), nn.Linear(4096, 1)).cuda()
    step = TrainStep(
        model, torch.optim.AdamW(model.parameters(), lr=1e-4), lambda model, x: model(x).square().mean()
    )
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    if free < 0.95 * total:
        pytest.skip("other tests or processes use the device")
    # Each GELU keeps its input: 13 matrices of 4096 columns, and some for the backward.
    x = torch.randn(int(0.75 * total / (16 * 4 * 4096)), 256, device="cuda")
    seen = []
    ends_s = time.monotonic() + 120
    while step.tier != "compiled" and time.monotonic() < ends_s:
        step(x)
        if step.tier not in seen:
            seen.append(step.tier)
    assert step.tier == "compiled", step.report()
    assert "captured" in seen
