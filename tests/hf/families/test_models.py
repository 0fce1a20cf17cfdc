"""Families as graphs: paths, tags, pictures, profiles, masked-LM positions, and every tier of `TrainStep`."""

import shutil

import pytest
import torch
from torch.nn import functional as F

from flodl import TrainStep
from flodl.core import HFError
from flodl.hf.heads import Head
from flodl.hf.parity import SMALL
from flodl.hf.registry import family_of

CONFIGS = {
    "bert": SMALL,
    "roberta": SMALL,
    "xlm-roberta": SMALL,
    "distilbert": {**SMALL, "hidden_dim": 48},
    "albert": {**SMALL, "embedding_size": 16},
    "deberta-v2": {
        **SMALL,
        "relative_attention": True,
        "position_buckets": 8,
        "pos_att_type": "p2c|c2p",
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "conv_kernel_size": 3,
        "position_biased_input": False,
    },
    "modernbert": {**SMALL, "local_attention": 6, "pad_token_id": 0},
}
FAMILIES = list(CONFIGS)
DROPOUTS = (
    "hidden_dropout_prob attention_probs_dropout_prob classifier_dropout classifier_dropout_prob "
    "dropout attention_dropout seq_classif_dropout"
)
WITHOUT_DROPOUT = dict.fromkeys(DROPOUTS.split(), 0.0)


def create(family, head=Head.BASE, **options):
    torch.manual_seed(0)
    raw = {"model_type": family, **CONFIGS[family], **options}
    found = family_of(raw)
    return found.create(found.read_config(raw), head)


def batch(length=9):
    torch.manual_seed(1)
    ids = torch.randint(5, 60, (3, length))
    mask = torch.arange(length) < torch.tensor([[length], [4], [6]])
    return ids, mask.long()


def run(graph, ids, mask=None, **others):
    others = {name: others.get(name) for name in graph.spec.input_names if name != "attention_mask"}
    return graph(ids, attention_mask=mask, **others)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_have_the_same_paths_in_every_family(family):
    graph = create(family)
    out = run(graph, *batch())
    assert graph.tagged("encoder.layer.0").shape == out.shape
    assert torch.equal(graph.tagged("encoder"), out)
    graph.freeze("encoder.layer.0")
    frozen = [name for name, parameter in graph.named_parameters() if not parameter.requires_grad]
    assert frozen
    assert all(name.startswith("encoder.layer.0.") for name in frozen)
    graph.freeze("embeddings")
    assert graph.is_frozen("embeddings")
    assert not graph.is_frozen("encoder")
    assert graph.parameters_at("encoder.layer.*.attention")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_and_profiles_show_the_parts(family):
    graph = create(family, Head.TOKEN_CLASSIFICATION)
    assert "feed_forward" in graph.svg()
    ids, mask = batch()
    inputs = {name: mask if name == "attention_mask" else None for name in graph.spec.input_names}
    profile = graph.profile(ids, **inputs)
    assert "encoder" in str(profile)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_at_selected_positions_equal_those_of_the_whole_batch(family):
    graph = create(family, Head.MASKED_LM).eval()
    ids, mask = batch()
    positions = torch.tensor([0, 3, 10, 10, 20])
    everywhere = run(graph, ids, mask)
    selected = run(graph, ids, mask, positions=positions)
    assert everywhere.shape == (3, 9, 60)
    torch.testing.assert_close(selected, everywhere.flatten(0, 1)[positions])


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_does_not_change_real_tokens(family):
    graph = create(family).eval()
    ids, mask = batch()
    alone = run(graph, ids[1:2, :4], mask[1:2, :4])
    torch.testing.assert_close(run(graph, ids, mask)[1:2, :4], alone)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # a CPU without bf16
@pytest.mark.parametrize("family", FAMILIES)
def test_a_sequence_of_padding_stays_finite_in_lower_precision(family):
    graph = create(family).eval()
    ids, mask = batch()
    mask[1] = 0
    with torch.autocast("cpu", torch.bfloat16):
        assert run(graph, ids, mask).isfinite().all()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # a CPU without bf16
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_sequence_of_padding_gets_no_gradient_and_disturbs_none(family, precision):
    graph = create(family).eval()
    ids, mask = batch()
    ids, others = ids % 45 + 5, torch.arange(50, 59)
    found = []
    for rows in ([0, 1, 2], [0, 2]):
        ids[1], mask[1] = others, 0
        graph.zero_grad()
        with torch.autocast("cpu", precision, enabled=precision is not torch.float32):
            hidden = run(graph, ids[rows], mask[rows])[[0, -1]].float()
        (hidden * mask[[0, 2], :, None]).square().sum().backward()
        found.append({name: value.grad for name, value in graph.named_parameters() if value.grad is not None})
    word = found[0]["embeddings.tokens.word.weight"]
    assert word[5:50].any()
    assert not word[50:].any()
    bound = 1e-5 if precision is torch.float32 else 0.05
    scale = max(float(value.abs().max()) for value in found[1].values())
    for name, reference in found[1].items():
        assert found[0][name].isfinite().all(), name
        torch.testing.assert_close(found[0][name], reference, rtol=bound, atol=bound * scale)


@pytest.mark.parametrize("family", FAMILIES)
def test_computed_tables_follow_the_model_and_keep_their_numbers(family):
    graph = create(family)
    tables = {name: value.clone() for name, value in graph.named_buffers()}
    assert bool(tables) == (family in ("deberta-v2", "modernbert"))
    graph.to("meta")
    assert all(value.is_meta for value in graph.buffers())
    graph.to_empty(device="cpu").bfloat16()
    for name, value in graph.named_buffers():
        assert torch.equal(value, tables[name]), name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("masked", [True, False])
def test_the_forward_reads_no_tensor_on_the_host(family, masked):
    graph = create(family, Head.SEQUENCE_CLASSIFICATION).to("meta")
    ids, mask = (value.to("meta") for value in batch())
    assert run(graph, ids, mask if masked else None).shape == (3, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch's compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the CPU with g++")
@pytest.mark.parametrize("family", ["albert", "deberta-v2"])  # BERT is like ALBERT; ModernBERT: test_packed
def test_a_compiled_step_equals_an_eager_one(family):
    losses = {}
    for tier in ("eager", "compiled"):
        graph = create(family, Head.SEQUENCE_CLASSIFICATION, **WITHOUT_DROPOUT, num_hidden_layers=1)
        ids, mask = batch()
        step = TrainStep(graph, torch.optim.SGD(graph.parameters(), lr=0.1), loss_of, tier=tier)
        losses[tier] = [float(step((ids, mask, torch.tensor([0, 1, 1])))) for _ in range(12)]
        assert step.report().tier == tier
    assert losses["compiled"] == pytest.approx(losses["eager"], rel=1e-3)
    assert losses["eager"][-1] < losses["eager"][0]


def loss_of(graph, given):
    ids, mask, labels = given
    return F.cross_entropy(run(graph, ids, mask), labels)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert"])
def test_too_many_tokens_raise(family):
    graph = create(family)
    with pytest.raises(HFError, match=r"sequences of 41 tokens, but the model has positions for (40|38)"):
        run(graph, torch.ones(2, 41, dtype=torch.long) * 7)


def test_relative_positions_have_no_limit():
    for family in ("deberta-v2", "modernbert"):
        ids = torch.randint(5, 60, (1, 90))
        assert run(create(family), ids).isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_new_weights_are_random_and_padding_is_zero(family):
    graph = create(family, Head.MASKED_LM)
    word = graph.get_submodule("embeddings.tokens.word")
    decoder = graph.get_submodule("lm_head.decoder_1")
    assert decoder.weight is word.weight
    assert 0.015 < float(word.weight.detach().std()) < 0.025
    assert not decoder.bias.any()
    if family != "modernbert":
        assert not word.weight[word.padding_idx].any()
