"""The loss of a packed batch is the loss of the padded batch, for every head and kind of label."""

import pytest
import torch

from flodl.hf.heads import Head
from flodl.hf.losses import compute_loss, span_loss
from flodl.hf.packing import pack_values
from flodl.hf.registry import family_of

from .families.test_models import CONFIGS, create
from .families.test_packed import LENGTHS, SLOT, packed, padded, run, sentences

FAMILIES = ["bert", "deberta-v2"]  # the losses do not depend on the family
COUNT, LONGEST = len(LENGTHS), max(LENGTHS)
ABSENT = SLOT.sequences - COUNT
SEQUENCE_LABELS = {
    "classes": (3, None, torch.tensor([0, 2, 1, 1])),
    "one without a label": (3, None, torch.tensor([0, -100, 1, 1])),
    "several": (3, "multi_label_classification", torch.tensor([[0.0, 1, 1], [1, 0, 0]] * 2)),
    "probabilities": (3, "single_label_classification", torch.tensor([[0.5, 0.25, 0.25], [0, 1, 0]] * 2)),
    "value": (1, None, torch.linspace(-1, 1, 4)),
    "values": (3, "regression", torch.linspace(-1, 1, 12).view(4, 3)),
}


def loss_of(graph, raw, head, inputs, labels):
    def forward(**given):
        outputs = run(graph, given)
        return outputs if head is Head.QUESTION_ANSWERING else outputs[0]

    family = family_of(raw)
    return compute_loss(forward, inputs, labels, head=head, config=family.read_config(raw))


def compare(family, head, labels, packed_labels, **options):
    raw = {"model_type": family, **CONFIGS[family], "initializer_range": 0.2, **options}
    for dtype, bound in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        graph = create(family, head, initializer_range=0.2, **options).to(dtype).eval()
        expected = loss_of(graph, raw, head, padded(graph), labels)
        found = loss_of(graph, raw, head, packed(graph), packed_labels)
        torch.testing.assert_close(found, expected, rtol=bound, atol=bound)
        wanted, given = (
            torch.autograd.grad(loss, list(graph.parameters()), allow_unused=True)
            for loss in (expected, found)
        )
        for reference, value in zip(wanted, given):
            assert (reference is None) == (value is None)
            if reference is not None:
                torch.testing.assert_close(value, reference, rtol=bound, atol=bound)


@pytest.mark.parametrize("kind", SEQUENCE_LABELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_sequences_ignores_rows_without_a_sentence(family, kind):
    count, problem, labels = SEQUENCE_LABELS[kind]
    absent = float("nan") if labels.is_floating_point() else 1
    filler = torch.full((ABSENT, *labels.shape[1:]), absent, dtype=labels.dtype)
    compare(
        family,
        Head.SEQUENCE_CLASSIFICATION,
        labels,
        torch.cat([labels, filler]),
        num_labels=count,
        problem_type=problem,
        id2label={str(index): str(index) for index in range(count)},
    )


def token_labels():
    torch.manual_seed(6)
    labels = [torch.randint(0, 2, (length,)) for length in LENGTHS]
    labels[0][::3] = -100
    return labels


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_tokens_is_the_same(family):
    labels = token_labels()
    rows = torch.full((COUNT, LONGEST), -100)
    for row, label in zip(rows, labels):
        row[: len(label)] = label
    compare(family, Head.TOKEN_CLASSIFICATION, rows, pack_values(labels, SLOT, fill=-100))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_masked_tokens_is_the_same(family):
    chosen = [[id if index % 3 == 0 else -100 for index, id in enumerate(ids)] for ids in sentences()]
    rows = torch.full((COUNT, LONGEST), -100)
    for row, label in zip(rows, chosen):
        row[: len(label)] = torch.tensor(label)
    compare(family, Head.MASKED_LM, rows, pack_values(chosen, SLOT, fill=-100))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_spans_is_a_softmax_over_each_sentence(family):
    """That of a padded batch without the logits of padding, which is the mean over the sentences alone."""
    raw = {"model_type": family, **CONFIGS[family]}
    graph = create(family, Head.QUESTION_ANSWERING, initializer_range=0.2).double().eval()
    starts, ends = torch.tensor([0, 0, 3, 15]), torch.tensor([10, 0, 6, 15])
    inputs = padded(graph)
    hidden = inputs["attention_mask"] == 0
    logits = [part.masked_fill(hidden, -1e30) for part in run(graph, inputs)]
    expected = span_loss(*logits, (starts, ends))
    for filler in (-100, 0, 99):
        absent = torch.full((ABSENT,), filler)
        labels = (torch.cat([starts, absent]), torch.cat([ends, absent]))
        found = loss_of(graph, raw, Head.QUESTION_ANSWERING, packed(graph), labels)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    wanted, given = (
        torch.autograd.grad(loss, list(graph.parameters()), allow_unused=True) for loss in (expected, found)
    )
    for reference, value in zip(wanted, given):
        torch.testing.assert_close(value, reference, rtol=1e-10, atol=1e-10)


def test_positions_after_the_end_of_a_sentence_do_not_count():
    graph = create("bert", Head.QUESTION_ANSWERING).double().eval()
    raw = {"model_type": "bert", **CONFIGS["bert"]}
    inside = torch.tensor([4, -100, 2, 3, -100, -100])
    outside = torch.tensor([4, 1, 2, 16, 5, 5])
    inside[1], inside[3] = 40, 40
    losses = [
        loss_of(graph, raw, Head.QUESTION_ANSWERING, packed(graph), (labels, labels))
        for labels in (inside, outside)
    ]
    assert losses[0].isfinite()
    assert losses[0] == losses[1]


@pytest.mark.slow
@pytest.mark.parametrize("head", [Head.SEQUENCE_CLASSIFICATION, Head.QUESTION_ANSWERING])
def test_the_loss_of_a_packed_batch_compiles_into_one_graph(head):
    raw = {"model_type": "bert", **CONFIGS["bert"]}
    config = family_of(raw).read_config(raw)
    graph = create("bert", head, num_hidden_layers=1).eval()
    shape = (SLOT.sequences, 2) if head is Head.QUESTION_ANSWERING else (SLOT.sequences,)

    def loss(inputs, labels):
        def forward(**given):
            outputs = run(graph, given)
            return outputs if head is Head.QUESTION_ANSWERING else outputs[0]

        return compute_loss(forward, inputs, labels, head=head, config=config)

    batch = (packed(graph), torch.zeros(shape, dtype=torch.long))
    torch.testing.assert_close(torch.compile(loss, fullgraph=True, backend="eager")(*batch), loss(*batch))
