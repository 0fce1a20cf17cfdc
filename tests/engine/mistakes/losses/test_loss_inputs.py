"""Losses of torch that accept inputs and targets which cannot be meant, and would be trained on unnoticed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flodl.engine import TrainStep, watch_broadcasts
from flodl.engine.mistakes.losses.loss_inputs import class_out_of_bounds

N = 8
X, LABELS, FLAGS = torch.randn(N, 4), torch.arange(N) % 3, (torch.arange(N) % 2).float()
TARGETS = torch.randn(N, 3).softmax(-1)


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    """Forget what other tests compile, where the search is left out."""
    import torch._dynamo.eval_frame

    monkeypatch.setattr(torch._dynamo.eval_frame, "cached_backends", {})


def found_in(outputs, loss, *, last=None):
    linear = nn.Linear(4, outputs)
    nn.init.ones_(linear.bias)
    model = nn.Sequential(linear, *([] if last is None else [last]))
    with watch_broadcasts(model, (X, LABELS)) as found:
        loss(model(X))
    return found


@pytest.mark.parametrize(
    ("outputs", "last", "loss", "words"),
    [
        (1, None, lambda p: F.cross_entropy(p, FLAGS[:, None]), "shape [8, 1], which is one class"),
        (1, None, lambda p: nn.CrossEntropyLoss()(p, torch.zeros(N).long()), "whatever the scores are"),
        (1, None, lambda p: F.cross_entropy(p.squeeze(1), FLAGS), "one sample with 8 classes"),
        (3, None, lambda p: F.nll_loss(p, LABELS), "nll_loss takes log-probabilities, but its input has"),
        (3, nn.Softmax(-1), lambda p: nn.NLLLoss()(p, LABELS), "Replace softmax with log_softmax"),
        (3, nn.Softmax(-1), lambda p: F.kl_div(p, TARGETS), "its input contains probabilities"),
        (3, nn.LogSoftmax(0), lambda p: F.nll_loss(p, LABELS), "over dimension 0, the samples"),
        (3, nn.Softmax(0), lambda p: F.nll_loss(p.log(), LABELS), "over the classes, dim=1"),
        (3, nn.LogSoftmax(0), lambda p: F.cross_entropy(p, LABELS), "over dimension 0"),
        (3, nn.LogSoftmax(0), lambda p: F.kl_div(p, TARGETS), "over the classes, dim=-1"),
        (
            6,
            None,
            lambda p: F.nll_loss(p.view(N, 3, 2).log_softmax(-1), torch.zeros(N, 2).long()),
            "over dimension 2. Compute",
        ),
        (1, None, lambda p: F.binary_cross_entropy_with_logits(p[:, 0], 2 * FLAGS - 1), "from -1 to 1"),
        (1, None, lambda p: nn.BCEWithLogitsLoss()(p, LABELS[:, None].float()), "from 0 to 2"),
    ],
)
@pytest.mark.filterwarnings("ignore:reduction:UserWarning")
def test_it_is_reported_with_the_line(outputs, last, loss, words):
    (text,) = found_in(outputs, loss, last=last)
    assert text.startswith("at test_loss_inputs.py:")
    assert words in text


class Normalized(nn.Module):
    def forward(self, scores):
        return scores - scores.logsumexp(-1, keepdim=True)


@pytest.mark.parametrize(
    ("outputs", "last", "loss"),
    [
        (3, None, lambda p: F.cross_entropy(p, LABELS)),
        (3, None, lambda p: F.cross_entropy(p, TARGETS)),
        (1, None, lambda p: F.cross_entropy(p.squeeze(1), FLAGS / FLAGS.sum())),  # ranks the samples
        (1, None, lambda p: F.cross_entropy(p[:1], FLAGS[:1].long())),  # one of a list of candidates
        (3, nn.LogSoftmax(-1), lambda p: F.nll_loss(p, LABELS)),
        (3, nn.LogSoftmax(-1), lambda p: F.nll_loss(p.half(), LABELS)),
        (3, nn.LogSoftmax(-1), lambda p: F.nll_loss(-5 * p, LABELS)),  # a policy gradient, with advantages
        (3, nn.Softmax(-1), lambda p: F.nll_loss((p + 1e-8).log(), LABELS)),
        (3, Normalized(), lambda p: F.nll_loss(p, LABELS)),
        (3, nn.LogSoftmax(-1), lambda p: F.kl_div(p, TARGETS)),
        (3, nn.LogSoftmax(-1), lambda p: F.kl_div(p, TARGETS.log(), log_target=True)),
        (3, nn.Softmax(-1), lambda p: F.kl_div((p + 1e-8).log(), TARGETS)),
        (N, nn.LogSoftmax(0), lambda p: F.nll_loss(p, torch.arange(N))),  # pairs in both directions
        (6, None, lambda p: F.nll_loss(p.view(N, 3, 2).log_softmax(1), torch.zeros(N, 2).long())),
        (1, None, lambda p: F.binary_cross_entropy_with_logits(p[:, 0], FLAGS)),
        (1, None, lambda p: F.binary_cross_entropy_with_logits(p[:, 0], FLAGS * 0.9 + 0.05)),
        (
            1,
            None,
            lambda p: F.binary_cross_entropy_with_logits(p[:, 0], LABELS - 1.0, weight=(LABELS > 0).float()),
        ),
        (1, None, lambda p: F.binary_cross_entropy_with_logits(p[:, 0], LABELS - 1.0, reduction="none")),
        (1, nn.Sigmoid(), lambda p: F.binary_cross_entropy(p[:, 0], FLAGS)),
    ],
)
@pytest.mark.filterwarnings("ignore:reduction:UserWarning")
def test_usual_losses_are_not_reported(outputs, last, loss):
    assert found_in(outputs, loss, last=last) == []


def test_a_step_reports_it_once(capsys):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = TrainStep(model, optimizer, lambda m, x, y: F.cross_entropy(m(x), y), tier="eager")
    for _ in range(3):
        step(X, torch.zeros(N).long())
    assert capsys.readouterr().err.count("which is one class") == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
@pytest.mark.parametrize(("loss", "shape"), [(F.cross_entropy, (4, 3)), (F.nll_loss, (4, 3, 2))])
def test_a_class_out_of_bounds_is_found_before_a_device_fails(loss, shape, dtype):
    scores = torch.randn(shape).log_softmax(1)
    target = torch.zeros(shape[0], *shape[2:], dtype=dtype)
    assert class_out_of_bounds(loss, (scores, target), None) is None
    target[2] = 3
    assert str(class_out_of_bounds(loss, (scores, target), None)) == "Target 3 is out of bounds."
    assert class_out_of_bounds(loss, (scores, target), {"ignore_index": 3}) is None
    assert class_out_of_bounds(loss, (scores, target, None, None, 3), None) is None


@pytest.mark.parametrize("target", [torch.tensor(5), torch.full((4,), 9.0), torch.full((4, 1), 9)])
def test_other_mistakes_than_a_class_out_of_bounds_are_left_to_torch(target):
    assert class_out_of_bounds(F.cross_entropy, (torch.zeros(4, 3), target), None) is None


def test_the_first_step_names_a_class_out_of_bounds_before_the_loss_is_computed():
    model = nn.Linear(4, 3)
    with (
        watch_broadcasts(model, (X, LABELS)),
        pytest.raises(IndexError, match="Target 3 is out of") as raised,
    ):
        F.cross_entropy(model(X), LABELS + 1)
    assert "class_out_of_bounds" in {entry.name for entry in raised.traceback}
