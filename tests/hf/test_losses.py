import math
import os

import pytest
import torch

from flodl.core import HFError
from flodl.hf.config import Dropouts, EncoderConfig, Sizes
from flodl.hf.heads import Head
from flodl.hf.losses import compute_loss, masked_lm_loss, select_masked, sequence_loss, span_loss, token_loss
from flodl.hf.registry import family_of

os.environ["HF_HUB_OFFLINE"] = "1"
# DeBERTa of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 40,
}
FAMILIES = ["bert", "roberta", "albert", "deberta-v2"]


def model_of(family, suffix, **options):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SIZES, **options)
    return getattr(transformers, f"AutoModelFor{suffix}").from_config(config).eval()


def inputs_of(batch=6, length=12):
    torch.manual_seed(1)
    return {
        "input_ids": torch.randint(5, 50, (batch, length)),
        "attention_mask": torch.ones(batch, length).long(),
    }


def config_of(family="bert", problem_type=None):
    sizes = Sizes(50, 16, 1, 2, 16, 40)
    return EncoderConfig(family, sizes, Dropouts(), "gelu", 1e-5, 0, ("a", "b", "c"), problem_type)


SEQUENCE_LABELS = {
    "classes": (3, None, torch.tensor([0, 2, 1, 1, 0, 2])),
    "several": (3, "multi_label_classification", torch.tensor([[0.0, 1, 1]] * 6)),
    "several by type": (3, None, torch.tensor([[0.0, 1, 1], [1, 0, 0]] * 3)),
    "value": (1, None, torch.linspace(-1, 1, 6)),
    "values": (3, "regression", torch.linspace(-1, 1, 18).view(6, 3)),
}


@pytest.mark.parametrize("kind", SEQUENCE_LABELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_sequences_equals_that_of_transformers(family, kind):
    count, problem, labels = SEQUENCE_LABELS[kind]
    model = model_of(family, "SequenceClassification", num_labels=count, problem_type=problem)
    inputs = inputs_of()
    expected = model(**inputs, labels=labels)
    found = compute_loss(
        lambda **inputs: model(**inputs).logits, inputs, labels,
        head=Head.SEQUENCE_CLASSIFICATION, config=config_of(family, problem),
    )  # fmt: skip
    torch.testing.assert_close(found, expected.loss)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_tokens_equals_that_of_transformers(family):
    model, inputs = model_of(family, "TokenClassification", num_labels=4), inputs_of()
    labels = torch.randint(0, 4, (6, 12))
    labels[:, ::3] = -100
    expected = model(**inputs, labels=labels)
    torch.testing.assert_close(token_loss(expected.logits, labels), expected.loss)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_spans_equals_that_of_transformers(family):
    model, inputs = model_of(family, "QuestionAnswering"), inputs_of()
    # Some positions are outside of the sequence, on either side.
    start, end = torch.tensor([0, 3, 11, 12, 90, -1]), torch.tensor([2, 5, 11, 40, 90, -5])
    expected = model(**inputs, start_positions=start, end_positions=end)
    for labels in (
        (start, end),
        {"start_positions": start, "end_positions": end},
        torch.stack([start, end], 1),
    ):
        found = span_loss(expected.start_logits, expected.end_logits, labels)
        torch.testing.assert_close(found, expected.loss)
    column = span_loss(expected.start_logits, expected.end_logits, (start[:, None], end[:, None]))
    torch.testing.assert_close(column, expected.loss)


def logits_at(model):
    """Run a model of transformers as a graph runs: with logits at some positions only."""

    def forward(positions=None, **inputs):
        logits = model(**inputs).logits
        return logits if positions is None else logits.flatten(0, 1)[positions]

    return forward


@pytest.mark.parametrize("share", [0.15, 1.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_masked_tokens_equals_that_of_transformers(family, share):
    """Also where more positions are masked than are expected."""
    model, inputs = model_of(family, "MaskedLM"), inputs_of(16, 20)
    labels = torch.where(torch.rand(16, 20) < share, inputs["input_ids"], -100)
    expected = model(**inputs, labels=labels)
    found = compute_loss(logits_at(model), inputs, labels, head=Head.MASKED_LM, config=config_of())
    torch.testing.assert_close(found, expected.loss)
    torch.testing.assert_close(masked_lm_loss(expected.logits, labels), expected.loss)


def test_the_gradients_of_selected_positions_equal_those_of_all():
    raw = {"model_type": "bert", **SIZES}
    family = family_of(raw)
    config = family.read_config(raw)
    torch.manual_seed(0)
    graph = family.create(config, Head.MASKED_LM).double().eval()
    ids = inputs_of(16, 20)["input_ids"]
    labels = torch.where(torch.rand(16, 20) < 0.15, ids, -100)

    def forward(input_ids, **inputs):
        return graph(input_ids, **{name: inputs.get(name) for name in graph.spec.input_names})

    def gradients(loss):
        return torch.autograd.grad(loss, list(graph.parameters()), allow_unused=True)

    selected = compute_loss(forward, {"input_ids": ids}, labels, head=Head.MASKED_LM, config=config)
    everywhere = masked_lm_loss(forward(ids), labels)
    torch.testing.assert_close(selected, everywhere)
    for found, expected in zip(gradients(selected), gradients(everywhere)):
        if expected is not None:
            torch.testing.assert_close(found, expected)


def test_the_number_of_selected_positions_does_not_depend_on_the_labels():
    for count in (0, 1, 60, 128):
        labels = torch.full((8, 64), -100)
        labels.view(-1)[torch.randperm(512)[:count]] = 3
        masked = select_masked(labels)
        assert masked.positions.shape == masked.labels.shape == (128,)
        assert (masked.labels == 3).sum() == count
        assert torch.equal(labels.flatten()[masked.positions], masked.labels)
        assert len(masked.positions.unique()) == 128


@pytest.mark.slow
def test_a_compiled_step_with_too_many_masked_positions_gives_nan_and_not_a_wrong_loss():
    torch.manual_seed(0)
    table = torch.randn(8, 64, 50)

    def loss(labels):
        return compute_loss(
            lambda positions: table.flatten(0, 1)[positions],
            {},
            labels,
            head=Head.MASKED_LM,
            config=config_of(),
        )

    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    few, many = torch.full((8, 64), -100), torch.ones(8, 64, dtype=torch.long)
    few[:, ::8] = 1
    torch.testing.assert_close(compiled(few), loss(few))
    assert math.isnan(compiled(many))
    assert not math.isnan(loss(many))


@pytest.mark.slow
def test_all_losses_compile_into_one_graph():
    torch.manual_seed(0)
    logits, tokens = torch.randn(4, 3), torch.randn(4, 6, 3)

    def losses(classes, soft, labels, spans):
        return (
            sequence_loss(logits, classes),
            sequence_loss(logits, soft),
            sequence_loss(logits, soft, soft_labels=True),
            token_loss(tokens, labels),
            span_loss(tokens[..., 0], tokens[..., 1], spans),
        )

    labels = torch.randint(0, 3, (4, 6))
    arguments = (
        torch.tensor([0, 1, 2, 0]),
        torch.rand(4, 3),
        labels,
        torch.tensor([[0, 9], [1, 2], [3, 3], [2, 5]]),
    )
    compiled = torch.compile(losses, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*arguments), losses(*arguments))


def test_soft_labels_are_probabilities_of_classes():
    logits, soft = torch.randn(4, 3), torch.softmax(torch.randn(4, 3), 1)
    expected = -(torch.log_softmax(logits, 1) * soft).sum(1).mean()
    torch.testing.assert_close(sequence_loss(logits, soft, soft_labels=True), expected)
    found = sequence_loss(logits, soft, problem_type="single_label_classification")
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sequence_loss(torch.zeros(2, 3), torch.zeros(3).long()), r"the shape \(3,\) for .*\(2, 3\)"),
        (lambda: sequence_loss(torch.zeros(2, 3), torch.zeros(2)), "a 0 or 1 per label"),
        (lambda: sequence_loss(torch.zeros(2, 3), torch.zeros(2), problem_type="x"), "problem_type is 'x'"),
        (lambda: token_loss(torch.zeros(2, 5, 3), torch.zeros(2, 4)), "a label per token"),
        (
            lambda: span_loss(torch.zeros(2, 5), torch.zeros(2, 5), torch.zeros(2)),
            "expected \\(starts, ends\\)",
        ),
        (lambda: span_loss(torch.zeros(2, 5), torch.zeros(2, 5), {"start": 1}), r"the keys \['start'\]"),
        (lambda: select_masked(torch.zeros(2, 5), fraction=0), "the fraction of masked positions is 0"),
        (
            lambda: compute_loss(dict, {}, None, head=Head.BASE, config=config_of()),
            "a model without a head has no loss",
        ),
    ],
)
def test_labels_that_do_not_fit_raise(call, message):
    with pytest.raises(HFError, match=message):
        call()


def test_weights_of_classes_are_those_of_cross_entropy():
    torch.manual_seed(0)
    weight = torch.tensor([1.0, 5.0, 0.5])
    logits, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, 1, -100, 0])
    expected = torch.nn.functional.cross_entropy(logits, labels, weight=weight)
    assert torch.equal(sequence_loss(logits, labels, weight=weight), expected)
    rows = logits.view(2, 3, 3)
    assert torch.equal(token_loss(rows, labels.view(2, 3), weight=weight), expected)
    assert token_loss(rows.bfloat16(), labels.view(2, 3), weight=weight).dtype == torch.float32


def test_weights_of_classes_leave_out_rows_that_are_not_present():
    torch.manual_seed(0)
    weight, present = torch.tensor([1.0, 5.0]), torch.tensor([True, True, False])
    logits, labels = torch.randn(3, 2), torch.tensor([0, 1, 1])
    found = sequence_loss(logits, labels, present=present, weight=weight)
    assert torch.equal(found, sequence_loss(logits[:2], labels[:2], weight=weight))


@pytest.mark.parametrize(
    ("head", "labels", "weight", "message"),
    [
        (
            Head.SEQUENCE_CLASSIFICATION,
            torch.zeros(6, 2),
            torch.ones(2),
            "weight= needs class ids, one per te",
        ),
        (Head.SEQUENCE_CLASSIFICATION, torch.zeros(6).long(), [1.0, 2.0], "weight is a list. Pass a tensor"),
        (Head.QUESTION_ANSWERING, torch.zeros(6, 2), torch.ones(2), "which this head does not have"),
    ],
)
def test_weights_where_there_are_no_class_ids_are_an_error(head, labels, weight, message):
    config = config_of("bert")
    with pytest.raises(HFError, match=message):
        compute_loss(lambda **_: torch.zeros(6, 2), {}, labels, head=head, config=config, weight=weight)
