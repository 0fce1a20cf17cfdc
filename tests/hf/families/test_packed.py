"""Packed batches give what padded batches give, gradients included, in every family and with every head."""

import inspect
import shutil
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn

from flodl import TrainStep
from flodl.core import HFError
from flodl.hf.heads import Head
from flodl.hf.packing import Slot, pack, unpack
from flodl.hf.parts import packed as parts

from .test_models import CONFIGS, WITHOUT_DROPOUT, create

SLOT = Slot(tokens=64, sequences=6, longest=16)
LENGTHS = (11, 1, 7, 16)
CELLS = [
    (family, head)
    for family in CONFIGS
    for head in Head
    if (family, head) != ("modernbert", Head.QUESTION_ANSWERING)
]
VARIANTS = {
    "the mean of the tokens": ("modernbert", Head.SEQUENCE_CLASSIFICATION, {"classifier_pooling": "mean"}),
    "only local layers": ("modernbert", Head.BASE, {"layer_types": ["sliding_attention"] * 2}),
    "windows wider than sentences": ("modernbert", Head.BASE, {"local_attention": 60}),
    "absolute positions": ("deberta-v2", Head.BASE, {"position_biased_input": True, "type_vocab_size": 2}),
    "no relative positions": ("deberta-v2", Head.BASE, {"relative_attention": False}),
    "groups of layers": ("albert", Head.BASE, {"inner_group_num": 2, "num_hidden_groups": 2}),
    "no token types": ("bert", Head.BASE, {"type_vocab_size": 1}),
}


def sentences(lengths=LENGTHS):
    torch.manual_seed(3)
    return [torch.randint(5, 60, (length,)).tolist() for length in lengths]


def token_types(graph, lengths=LENGTHS):
    """Return token types, None in a family that has none."""
    if "token_type_ids" not in graph.spec.input_names:
        return None
    torch.manual_seed(4)
    kinds = graph.get_submodule("embeddings.tokens.token_type").num_embeddings
    return [torch.randint(0, kinds, (length,)).tolist() for length in lengths]


def padded(graph, lengths=LENGTHS):
    """Return the inputs of a padded batch."""
    word = graph.get_submodule("embeddings.tokens.word")
    rows = {"input_ids": (sentences(lengths), word.padding_idx or 0)}
    if types := token_types(graph, lengths):
        rows["token_type_ids"] = (types, 0)
    found = {name: torch.full((len(lengths), max(lengths)), fill) for name, (_, fill) in rows.items()}
    for name, (values, _) in rows.items():
        for row, value in zip(found[name], values):
            row[: len(value)] = torch.tensor(value)
    found["attention_mask"] = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return found


def packed(graph, lengths=LENGTHS, slot=SLOT):
    """Return the inputs of the same batch, packed."""
    tokens = graph.get_submodule("embeddings.tokens")
    pad = tokens.word.padding_idx or 0
    return pack(
        sentences(lengths),
        slot,
        pad_id=pad,
        first_position=pad + 1 if tokens.numbering == "after_padding" else 0,
        token_types=token_types(graph, lengths),
    )


def run(graph, inputs):
    others = {name: inputs.get(name) for name in graph.spec.input_names}
    output = graph(inputs["input_ids"], **others)
    return output if isinstance(output, tuple) else (output,)


def of_sentences(values, inputs):
    """Return what belongs to each sentence of a padded or packed batch."""
    if values.shape[:2] == inputs["input_ids"].shape:
        if "cu_seqlens" in inputs:
            return unpack(values, inputs["cu_seqlens"], len(LENGTHS))
        return [row[:length] for row, length in zip(values, LENGTHS)]
    return list(values[: len(LENGTHS)])


def gradients(graph, outputs, inputs):
    torch.manual_seed(5)
    parts = [part for output in outputs for part in of_sentences(output, inputs)]
    loss = sum((part * torch.randn(part.shape).to(part)).sum() for part in parts)
    graph.zero_grad()
    loss.backward()
    return {name: parameter.grad for name, parameter in graph.named_parameters()}


def compare(graph, bound):
    graph.eval()
    both = [(inputs, run(graph, inputs)) for inputs in (padded(graph), packed(graph))]
    for expected, found in zip(both[0][1], both[1][1], strict=True):
        pairs = zip(of_sentences(expected, both[0][0]), of_sentences(found, both[1][0]), strict=True)
        for reference, value in pairs:
            torch.testing.assert_close(value, reference, rtol=bound, atol=bound)
    expected, found = (gradients(graph, outputs, inputs) for inputs, outputs in both)
    for name, reference in expected.items():
        if reference is None or found[name] is None:
            assert reference is None or not reference.any(), name
            assert found[name] is None or not found[name].any(), name
        else:
            size = max(1.0, float(reference.abs().max()))
            torch.testing.assert_close(found[name] / size, reference / size, rtol=bound, atol=bound)


@pytest.mark.parametrize(("family", "head"), CELLS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_a_packed_batch_equals_a_padded_one(family, head, dtype, bound):
    compare(create(family, head, initializer_range=0.2).to(dtype), bound)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_packed_batch_equals_a_padded_one_with_every_option(variant):
    family, head, options = VARIANTS[variant]
    compare(create(family, head, initializer_range=0.2, **options).double(), 1e-10)


@pytest.mark.parametrize(("family", "head"), CELLS)
def test_rows_without_a_sentence_are_finite_and_have_no_gradient(family, head):
    graph = create(family, head).eval()
    for lengths in ((), (9,), (16, 16, 16, 16)):
        inputs = packed(graph, lengths)
        outputs = run(graph, inputs)
        assert all(output.isfinite().all() for output in outputs)
        used = sum(lengths)
        free = [
            output[:, used:] if output.shape[:2] == (1, 64) else output[len(lengths) :] for output in outputs
        ]
        graph.zero_grad()
        (sum(part.sum() for part in free) * 0.0).backward()
        for name, parameter in graph.named_parameters():
            assert parameter.grad is None or not parameter.grad.any(), name


@pytest.mark.parametrize("family", CONFIGS)
def test_the_slot_does_not_matter(family):
    graph = create(family, Head.SEQUENCE_CLASSIFICATION).double().eval()
    expected = run(graph, packed(graph))[0][: len(LENGTHS)]
    for slot in (Slot(128, 4, 16), Slot(64, 9, 32), Slot(192, 5, 38)):
        found = run(graph, packed(graph, slot=slot))[0]
        assert found.shape[0] == slot.sequences
        torch.testing.assert_close(found[: len(LENGTHS)], expected)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_packed_forward_reads_no_tensor_on_the_host(family):
    graph = create(family, Head.SEQUENCE_CLASSIFICATION)
    inputs = packed(graph)
    graph.to("meta")
    inputs = {name: value if isinstance(value, int) else value.to("meta") for name, value in inputs.items()}
    assert run(graph, inputs)[0].shape == (SLOT.sequences, 2)


def kernel(query, key, value, starts, same, longest, longest_too, *, window_size=(-1, -1)):
    """Compute what torch's kernel for packed tokens computes, sequence by sequence."""
    assert starts is same
    assert starts.dtype == torch.int32
    assert longest == longest_too
    assert query.shape == key.shape == value.shape
    assert query.dim() == 3
    assert starts[-1] == len(query)
    found = []
    for start, end in pairwise(starts.tolist()):
        assert 0 <= end - start <= longest
        place = torch.arange(end - start)
        distance = place - place[:, None]
        left, right = (reach if reach >= 0 else longest for reach in window_size)
        parts = (part[start:end].transpose(0, 1) for part in (query, key, value))
        mask = (distance >= -left) & (distance <= right)
        found.append(F.scaled_dot_product_attention(*parts, attn_mask=mask).transpose(0, 1))
    return torch.cat(found)


@pytest.mark.parametrize("family", [family for family in CONFIGS if family != "deberta-v2"])
@pytest.mark.parametrize("head", [Head.BASE, Head.SEQUENCE_CLASSIFICATION])
def test_the_kernel_for_packed_tokens_gives_the_same(family, head, monkeypatch):
    monkeypatch.setattr(parts, "varlen_attn", kernel)
    monkeypatch.setattr(parts, "has_kernel", lambda hidden, width: True)
    monkeypatch.setattr(parts, "fits", lambda longest, width: False)  # Triton's kernels need a GPU
    compare(create(family, head, initializer_range=0.2).double(), 1e-10)


def test_the_kernel_for_packed_tokens_exists_in_this_torch():
    """With the arguments that it gets here; it only runs on CUDA."""
    names = list(inspect.signature(varlen_attn).parameters)
    assert names[:7] == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
    assert not parts.has_kernel(torch.zeros(1, 4, 64, dtype=torch.bfloat16), 64)


@pytest.mark.parametrize("family", CONFIGS)
def test_dropout_of_values_keeps_the_mean_and_changes_between_calls(family):
    names = ("attention_probs_dropout_prob", "attention_dropout")
    graph = create(family, **{**WITHOUT_DROPOUT, **dict.fromkeys(names, 0.5)}, num_hidden_layers=1)
    graph.train()
    inputs = packed(graph)
    torch.manual_seed(0)
    first, second = run(graph, inputs)[0], run(graph, inputs)[0]
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(run(graph, inputs)[0], first)
    graph.eval()
    assert torch.equal(run(graph, inputs)[0], run(graph, inputs)[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch's compiler
@pytest.mark.parametrize("family", ["bert", "albert", "deberta-v2", "modernbert"])  # the others are like BERT
def test_a_packed_forward_compiles_into_one_graph(family):
    graph = create(family, Head.SEQUENCE_CLASSIFICATION, num_hidden_layers=1).eval()
    compiled = torch.compile(lambda **inputs: run(graph, inputs)[0], fullgraph=True, backend="eager")
    for slot in (SLOT, Slot(128, 4, 32)):
        inputs = packed(graph, slot=slot)
        torch.testing.assert_close(compiled(**inputs), run(graph, inputs)[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch's compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the CPU with g++")
@pytest.mark.parametrize("family", ["modernbert"])  # that of DeBERTa takes a minute to compile
def test_a_compiled_step_of_packed_batches_equals_an_eager_one(family):
    losses = {}
    for tier in ("eager", "compiled"):
        graph = create(family, Head.SEQUENCE_CLASSIFICATION, **WITHOUT_DROPOUT, num_hidden_layers=1)
        step = TrainStep(graph, torch.optim.SGD(graph.parameters(), lr=0.1), loss_of, tier=tier)
        batch = (packed(graph), torch.tensor([0, 1, 1, 0]))
        losses[tier] = [float(step(*batch)) for _ in range(12)]
        assert step.report().tier == tier
    assert losses["compiled"] == pytest.approx(losses["eager"], rel=1e-3)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_step_takes_packed_batches_of_several_slots(family):
    graph = create(family, Head.SEQUENCE_CLASSIFICATION, **WITHOUT_DROPOUT, num_hidden_layers=1)
    step = TrainStep(graph, torch.optim.SGD(graph.parameters(), lr=0.1), loss_of)
    losses = [
        float(step(packed(graph, slot=slot), torch.tensor([0, 1, 1, 0])))
        for _ in range(4)
        for slot in (SLOT, Slot(128, 4, 32))
    ]
    assert losses[-1] < losses[0]


def loss_of(graph, inputs, labels):
    return F.cross_entropy(run(graph, inputs)[0][: len(labels)], labels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"longest": None}, "has cu_seqlens and longest"),
        ({"cu_seqlens": None}, "has cu_seqlens and longest"),
        ({"position_ids": None}, "needs position_ids"),
        ({"attention_mask": torch.ones(1, 64)}, "takes no attention_mask"),
        ({"longest": 73}, "sentences of 73 tokens, but the model has positions for 72"),
        ({"cu_seqlens": torch.tensor([0, 64])}, "cu_seqlens has 2 values for 64 tokens"),
        (
            {name: torch.zeros(2, 64, dtype=torch.long) for name in ("input_ids", "position_ids")},
            "one row of tokens, but input_ids has 2 rows",
        ),
    ],
)
def test_inputs_that_do_not_fit_raise(change, message):
    graph = create("bert", max_position_embeddings=72)
    inputs = {**packed(graph), "token_type_ids": None, **change}
    with pytest.raises(HFError, match=message):
        run(graph, inputs)
