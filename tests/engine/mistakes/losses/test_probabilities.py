"""A loss that applies a sigmoid or softmax itself gets the output of one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flodl import Trainer
from flodl.engine import watch_broadcasts

X, Y, LABELS = torch.randn(6, 3), torch.rand(6, 2).round(), torch.arange(6) % 2


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    """Forget what other tests compile, where the search is left out."""
    import torch._dynamo.eval_frame

    monkeypatch.setattr(torch._dynamo.eval_frame, "cached_backends", {})


def found_in(last, loss, target):
    model = nn.Sequential(nn.Linear(3, 2), last)
    with watch_broadcasts(model, (X, target)) as found:
        loss(model(X), target)
    return found


@pytest.mark.parametrize(
    ("last", "loss", "target", "words"),
    [
        (nn.Sigmoid(), F.binary_cross_entropy_with_logits, Y, "with_logits applies a sigmoid, but its input"),
        (nn.Sigmoid(), nn.BCEWithLogitsLoss(), Y, "use binary_cross_entropy"),
        (
            nn.Sigmoid(),
            lambda p, y: F.binary_cross_entropy_with_logits(p.flatten().float(), y.flatten()),
            Y,
            "already the output of a sigmoid",
        ),
        (nn.Softmax(dim=1), F.cross_entropy, LABELS, "cross_entropy applies a softmax, but its input"),
        (nn.Softmax(dim=1), nn.CrossEntropyLoss(), LABELS, "which should return scores"),
        (
            nn.Softmax(dim=1),
            lambda p, y: F.cross_entropy(input=p, target=y),
            LABELS,
            "already the output of a softmax",
        ),
    ],
)
def test_it_is_reported_with_the_line(last, loss, target, words):
    (text,) = found_in(last, loss, target)
    assert text.startswith("at test_probabilities.py:")
    assert words in text


@pytest.mark.parametrize(
    ("last", "loss", "target"),
    [
        (nn.Identity(), F.binary_cross_entropy_with_logits, Y),
        (nn.Sigmoid(), F.binary_cross_entropy, Y),
        (nn.Sigmoid(), F.mse_loss, Y),
        (nn.Sigmoid(), lambda p, y: F.binary_cross_entropy_with_logits(torch.logit(p, 1e-6), y), Y),
        (nn.Identity(), F.cross_entropy, LABELS),
        (nn.LogSoftmax(dim=1), F.cross_entropy, LABELS),
        (nn.LogSoftmax(dim=1), F.nll_loss, LABELS),
        (nn.Softmax(dim=1), lambda p, y: F.nll_loss(p.log(), y), LABELS),
        (nn.Softmax(dim=1), lambda p, y: F.cross_entropy(10 * p, y), LABELS),
    ],
)
def test_other_losses_are_not_reported(last, loss, target):
    assert found_in(last, loss, target) == []


def test_a_trainer_reports_it_once(capsys):
    trainer = Trainer(
        nn.Sequential(nn.Linear(3, 2), nn.Softmax(dim=1)),
        lambda model, x, y: F.cross_entropy(model(x), y),
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
        device="cpu",
        monitor=False,
    )
    trainer.fit((X, LABELS), epochs=2, batch_size=3, eval_data=(X, LABELS))
    assert capsys.readouterr().err.count("cross_entropy applies a softmax") == 1
