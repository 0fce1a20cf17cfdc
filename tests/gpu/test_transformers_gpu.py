"""Models of transformers with an attention mask: captured as they are, with the numbers of eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl.engine import TrainStep

transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def bert() -> nn.Module:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, num_labels=12))


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=2))


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=100, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1
    )
    return transformers.GPT2LMHeadModel(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def loss_of(model: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
    labels = tokens[:, 0] % 12 if hasattr(model, "classifier") else tokens
    return model(input_ids=tokens, attention_mask=mask, labels=labels).loss


def batches(count: int, *, padded: bool) -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator("cuda").manual_seed(1)
    tokens = [torch.randint(5, 90, (4, 12), generator=source, device="cuda") for _ in range(count)]
    mask = torch.ones(4, 12, dtype=torch.int64, device="cuda")
    if padded:
        mask[0, 8:] = 0
    return [(given, mask) for given in tokens]


def trained(make: Any, tier: str, given: list[tuple[Tensor, Tensor]]) -> tuple[TrainStep, Tensor]:
    torch.manual_seed(0)
    model = make().cuda().train()
    step = TrainStep(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loss_of, tier=tier)
    return step, torch.stack([step(*batch) for batch in given])


@pytest.mark.filterwarnings("ignore:Memory Efficient attention")
@pytest.mark.filterwarnings("ignore:Deterministic behavior was enabled")
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("make", [bert, llama, gpt2, t5])
def test_a_model_with_an_attention_mask_is_captured_with_eagers_bits(make, padded) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        given = batches(30, padded=padded)
        _, eager = trained(make, "eager", given)
        step, captured = trained(make, "captured", given)
    finally:
        torch.use_deterministic_algorithms(False)
    assert step.report().tier == "captured", step.report().reason
    assert torch.equal(eager, captured)


def test_a_mask_that_hides_nothing_in_some_batches_makes_no_difference() -> None:
    given = [batch for pair in zip(batches(15, padded=True), batches(15, padded=False)) for batch in pair]
    _, eager = trained(bert, "eager", given)
    step, captured = trained(bert, "captured", given)
    assert step.report().tier == "captured", step.report().reason
    assert torch.equal(eager, captured)


def test_the_compiled_step_comes_near() -> None:
    given = batches(12, padded=True)
    _, eager = trained(bert, "eager", given)
    step, compiled = trained(bert, "compiled", given)
    assert step.report().tier == "compiled", step.report().reason
    torch.testing.assert_close(eager, compiled, rtol=1e-3, atol=1e-3)
