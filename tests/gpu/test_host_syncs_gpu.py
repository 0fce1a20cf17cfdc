"""Steps that wait for the device only in their eager form, and batches that a recording reads as a copy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flodl.engine import TrainStep

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def folded(model: nn.Module, x: Tensor) -> Tensor:
    if not torch.compiler.is_compiling():
        x.sum().item()
    return model(x).square().mean()


def remaining(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean() * (2 if x.sum().item() > 1e9 else 1)


def trained(step_fn, *others: Tensor, **settings) -> TrainStep:
    torch.manual_seed(0)
    model = nn.Linear(4, 2).cuda()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), step_fn, **settings)
    for _ in range(12):
        step(torch.randn(8, 4, device="cuda"), *others)
    return step


def test_a_host_sync_that_the_compiler_removes_does_not_rule_out_the_compiled_tier() -> None:
    step = trained(folded, tier="compiled")
    assert step.tier == "compiled", step.report()
    assert "; the compiler removed a host sync: called a synchronizing CUDA" in step.report().reason


def test_a_host_sync_that_remains_is_refused_with_its_line() -> None:
    step = trained(remaining, tier="compiled")
    assert step.tier == "eager", step.report()
    assert "the step cannot be compiled: " in step.report().reason
    assert "x.sum().item() > 1e9" in step.report().reason


def attended(model: nn.Module, x: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
    sequence = (model(x)[:, :, None] + positions[:, None, :]).transpose(1, 2)[:, None]
    out = nn.functional.scaled_dot_product_attention(sequence, sequence, sequence, attn_mask=mask)
    return nn.functional.dropout(out, 0.1).square().mean()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_batch_with_expanded_tensors_is_compiled(precision: str) -> None:
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool, device="cuda").tril().expand(8, 1, 6, 6)
    positions = torch.arange(6, device="cuda").expand(8, 6)
    step = trained(attended, mask, positions, tier="compiled", precision=precision)
    assert step.tier == "compiled", step.report()


def test_deberta_is_compiled_although_its_eager_form_waits() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.DebertaV2Config(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
        # Otherwise the number of labels is read, in its compiled form too.
        problem_type="single_label_classification",
    )
    torch.manual_seed(0)
    model = transformers.DebertaV2ForSequenceClassification(config).cuda().train()
    step = TrainStep(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        lambda model, tokens: model(input_ids=tokens, labels=tokens[:, 0] % 2).loss,
        tier="compiled",
    )
    for _ in range(12):
        step(torch.randint(5, 90, (4, 12), device="cuda"))
    assert step.tier == "compiled", step.report()
