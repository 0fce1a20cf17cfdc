"""Packed batches on CUDA: torch's kernel for packed tokens, one recording per slot, and no wait."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flodl.engine import TrainStep
from flodl.hf.heads import Head
from flodl.hf.packing import Slot, pack, unpack
from flodl.hf.parts.packed import Packing, attend, has_kernel
from flodl.hf.registry import family_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SIZES = {
    "vocab_size": 200,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 130,
    "initializer_range": 0.1,
}
CONFIGS = {
    "bert": {},
    "roberta": {},
    "distilbert": {"hidden_dim": 96},
    "albert": {"embedding_size": 32},
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 16,
        "pos_att_type": "p2c|c2p",
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "conv_kernel_size": 3,
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "modernbert": {"local_attention": 16, "pad_token_id": 0},
}
DROPOUTS = (
    "hidden_dropout_prob attention_probs_dropout_prob classifier_dropout classifier_dropout_prob "
    "dropout attention_dropout seq_classif_dropout"
)
LENGTHS = (60, 3, 17, 33, 1, 48, 9, 64)
SLOTS = (Slot(256, 8, 64), Slot(320, 8, 64), Slot(512, 12, 128))


def create(family: str, head: Head = Head.BASE, *, dropout: float = 0.0) -> nn.Module:
    raw = {"model_type": family, **SIZES, **CONFIGS[family], **dict.fromkeys(DROPOUTS.split(), dropout)}
    found = family_of(raw)
    torch.manual_seed(0)
    return found.create(found.read_config(raw), head).cuda()


def sentences(lengths=LENGTHS, seed: int = 1) -> list[list[int]]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randint(5, 190, (length,), generator=source).tolist() for length in lengths]


def packed(graph: nn.Module, slot: Slot, texts: list[list[int]]) -> dict[str, Tensor | int]:
    tokens = graph.get_submodule("embeddings.tokens")
    pad = tokens.word.padding_idx or 0
    first = pad + 1 if tokens.numbering == "after_padding" else 0
    inputs = pack(texts, slot, pad_id=pad, first_position=first)
    return {name: value if isinstance(value, int) else value.cuda() for name, value in inputs.items()}


def padded(graph: nn.Module, texts: list[list[int]]) -> dict[str, Tensor]:
    pad = graph.get_submodule("embeddings.tokens").word.padding_idx or 0
    longest = max(map(len, texts))
    ids = torch.tensor([text + [pad] * (longest - len(text)) for text in texts], device="cuda")
    lengths = torch.tensor([[len(text)] for text in texts], device="cuda")
    return {"input_ids": ids, "attention_mask": (torch.arange(longest, device="cuda") < lengths).long()}


def run(graph: nn.Module, inputs: dict) -> Tensor:
    return graph(inputs["input_ids"], **{name: inputs.get(name) for name in graph.spec.input_names})


def hidden_and_gradients(graph: nn.Module, inputs: dict, count: int) -> tuple[Tensor, Tensor]:
    """Return the hidden states of all real tokens and the gradients of all parameters, as a vector each."""
    output = run(graph, inputs)
    if "cu_seqlens" in inputs:
        parts = unpack(output, inputs["cu_seqlens"], count)
    else:
        parts = [row[mask.bool()] for row, mask in zip(output, inputs["attention_mask"])]
    hidden = torch.cat(parts).float()
    source = torch.Generator("cuda").manual_seed(2)
    weight = torch.randn(hidden.shape, generator=source, device="cuda")
    graph.zero_grad()
    (hidden * weight).sum().backward()
    gradients = [
        parameter.grad.flatten().float() for parameter in graph.parameters() if parameter.grad is not None
    ]
    return hidden.detach().double(), torch.cat(gradients).double()


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_packed_is_as_exact_as_padded_in_16_bits(family: str, dtype: torch.dtype) -> None:
    graph, texts = create(family).eval(), sentences()
    exact = hidden_and_gradients(graph, padded(graph, texts), len(texts))
    with torch.autocast("cuda", dtype):
        wide = hidden_and_gradients(graph, padded(graph, texts), len(texts))
        for slot in SLOTS:
            found = hidden_and_gradients(graph, packed(graph, slot, texts), len(texts))
            for value, other, reference in zip(found, wide, exact):
                error, allowed = (value - reference).norm(), (other - reference).norm()
                assert value.isfinite().all()
                assert error <= 1.2 * allowed, f"{slot}: {float(error):.3g} against {float(allowed):.3g}"


@pytest.mark.parametrize("family", CONFIGS)
def test_packed_equals_padded_in_float32(family: str) -> None:
    graph, texts = create(family).eval(), sentences()
    exact = hidden_and_gradients(graph, padded(graph, texts), len(texts))
    found = hidden_and_gradients(graph, packed(graph, SLOTS[1], texts), len(texts))
    for value, reference in zip(found, exact):
        assert float((value - reference).norm() / reference.norm()) < 1e-4


def test_the_kernel_for_packed_tokens_is_used_in_16_bits() -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("the kernel needs compute capability 8.0")
    hidden = torch.zeros(1, 64, 64, device="cuda")
    assert not has_kernel(hidden, 16)
    assert has_kernel(hidden.bfloat16(), 16)
    assert not has_kernel(hidden.bfloat16(), 12)
    with torch.autocast("cuda", torch.bfloat16):
        assert has_kernel(hidden, 16)


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_empty_rows_and_a_full_slot_give_finite_gradients(family: str, precision: str) -> None:
    graph = create(family, Head.SEQUENCE_CLASSIFICATION)
    for lengths in ((64,), (64, 64, 64, 64)):
        inputs = packed(graph, Slot(256, 8, 64), sentences(lengths))
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            logits = run(graph, inputs)
        assert logits.shape[0] == 8
        assert logits.isfinite().all()
        graph.zero_grad()
        logits[: len(lengths)].float().sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in graph.parameters())


def batches(graph: nn.Module, count: int) -> list[tuple[dict, Tensor]]:
    """Return packed batches of different lengths that go through all slots in turn."""
    found = []
    for index in range(count):
        slot, texts = SLOTS[index % len(SLOTS)], sentences(LENGTHS[: 8 - index % 3], seed=index)
        labels = torch.full((slot.sequences,), -100, device="cuda")
        labels[: len(texts)] = torch.tensor([text[0] % 2 for text in texts], device="cuda")
        found.append((packed(graph, slot, texts), labels))
    return found


def loss_of(graph: nn.Module, inputs: dict, labels: Tensor) -> Tensor:
    return F.cross_entropy(run(graph, inputs), labels)


def trained(family: str, tier: str, *, dropout: float = 0.0, count: int = 45) -> tuple[TrainStep, Tensor]:
    graph = create(family, Head.SEQUENCE_CLASSIFICATION, dropout=dropout).train()
    given = batches(graph, count)
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(graph.parameters(), lr=1e-3)
    step = TrainStep(graph, optimizer, loss_of, tier=tier, precision="bf16")
    losses = [step(*batch) for batch in given[: count // 2]]
    warm = step.report().captures
    losses += [step(*batch) for batch in given[count // 2 :]]
    assert step.report().captures == warm, "a recording after the warm-up"
    assert warm <= len(SLOTS)
    return step, torch.stack(losses)


@pytest.mark.filterwarnings("ignore:Deterministic behavior was enabled")
@pytest.mark.filterwarnings("ignore:Memory Efficient attention")
@pytest.mark.filterwarnings("ignore:Flash Attention defaults")
@pytest.mark.parametrize("family", ["bert", "deberta-v2", "modernbert"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_captured_step_has_one_recording_per_slot_and_the_bits_of_eager(
    family: str, dropout: float
) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        _, eager = trained(family, "eager", dropout=dropout)
        step, captured = trained(family, "captured", dropout=dropout)
    finally:
        torch.use_deterministic_algorithms(False)
    assert step.report().tier == "captured", step.report().reason
    assert step.report().captures == len(SLOTS)
    assert torch.equal(eager, captured)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("family", ["bert", "deberta-v2", "modernbert"])
def test_a_compiled_step_takes_packed_batches(family: str) -> None:
    from torch._dynamo.utils import counters

    graph = create(family, Head.SEQUENCE_CLASSIFICATION)
    eager = create(family, Head.SEQUENCE_CLASSIFICATION)
    batch = batches(graph, 1)[0]
    losses = {}
    for tier, model in (("eager", eager), ("compiled", graph)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        step = TrainStep(model, optimizer, loss_of, tier=tier, precision="bf16")
        losses[tier] = torch.stack([step(*batch) for _ in range(20)])
        # Line by line: pytest shortens what is long.
        events = [*map(str, step.report().events), f"graph breaks: {dict(counters['graph_break'])}"]
        assert step.report().tier == tier, "\n".join(events)
    torch.testing.assert_close(losses["compiled"], losses["eager"], rtol=0.02, atol=0.02)
    assert losses["eager"][-1] < losses["eager"][0]


def test_a_packed_step_does_not_wait_for_the_device() -> None:
    graph = create("bert", Head.SEQUENCE_CLASSIFICATION, dropout=0.1).train()
    batch = batches(graph, 1)[0]
    loss_of(graph, *batch).backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.autocast("cuda", torch.bfloat16):
            loss_of(graph, *batch).backward()
        loss_of(graph, *batch).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_of_values_has_the_mean_without_dropout(dtype: torch.dtype) -> None:
    raw = {"model_type": "bert", **SIZES}
    config = family_of(raw).read_config(raw)
    torch.manual_seed(0)
    inputs = packed(create("bert"), SLOTS[0], sentences())
    hidden = torch.zeros(1, SLOTS[0].tokens, 64, device="cuda", dtype=dtype)
    place = Packing(config)(
        hidden,
        cu_seqlens=inputs["cu_seqlens"],
        longest=inputs["longest"],
        attention_mask=None,
        position_ids=inputs["position_ids"],
    ).with_mask(hidden)
    query, key, value = torch.randn(3, 1, 4, SLOTS[0].tokens, 16, device="cuda", dtype=dtype)
    used = sum(LENGTHS)
    exact = attend(query, key, value, place, dropout=0.0)[:, :, :used].float()
    mean = torch.stack(
        [attend(query, key, value, place, dropout=0.2)[:, :, :used].float() for _ in range(2000)]
    ).mean(0)
    assert float((mean - exact).abs().mean()) < 0.02
