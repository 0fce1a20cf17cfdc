"""Combining [n, 1] and [n] in a step function gives [n, n], which is hardly ever meant."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flodl.engine import TrainStep, watch_broadcasts

N = 6
X, Y = torch.randn(N, 3), torch.randn(N)
LABELS = torch.arange(N) % 2


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    """Forget what other tests compile, where the search is left out."""
    import torch._dynamo.eval_frame

    monkeypatch.setattr(torch._dynamo.eval_frame, "cached_backends", {})


def found_in(compute, *batch):
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    with watch_broadcasts(model, batch) as found:
        compute(model, *batch)
    return found


def actor_critic(model, x, y):
    advantage = y - model(x)
    return advantage.pow(2).mean()


def deep_q(model, x, y):
    scores = torch.cat([model(x), model(x)], dim=1)
    return (scores.gather(1, LABELS.unsqueeze(1)) - y).square().mean()


def kept_argmax(model, x, y):
    predicted = torch.cat([model(x), -model(x)], dim=1).argmax(dim=1, keepdim=True)
    return predicted.eq(y).float().mean()


@pytest.mark.parametrize(
    ("compute", "batch"),
    [
        (lambda model, x, y: ((model(x) - y) ** 2).mean(), (X, Y)),
        (lambda model, x, y: (y - model(x)).abs().mean(), (X, Y)),
        (lambda model, x, y: torch.sub(model(x).sigmoid() * 2, y / 3).abs().mean(), (X, Y)),
        (lambda model, x, y: ((model(x) > 0).float() == y).float().mean(), (X, Y.round())),
        (lambda model, x, y: (model(x).squeeze(1).round() == y).float().mean(), (X, LABELS[:, None].float())),
        (lambda model, x, y, w: ((model(x) - y).square() * w).mean(), (X, Y[:, None], Y)),
        (actor_critic, (X, Y)),
        (deep_q, (X, Y)),
        (kept_argmax, (X, LABELS)),
    ],
)
def test_one_number_for_each_sample_against_all_others_is_found(compute, batch):
    (text,) = found_in(compute, *batch)
    source, first = inspect.getsourcelines(compute)
    lines = [f"at test_broadcasts.py:{line}" for line in range(first, first + len(source))]
    assert text.split(",")[0] in lines
    assert f"tensors of shape [{N}, 1] and [{N}] broadcast to [{N}, {N}]" in text


IMAGES = torch.randn(N, 3, N, 5)
MASKS = (torch.rand(N, N, 5) > 0.5).float()


def dice_of_images(model, x, y):
    p = model(x).sigmoid()
    both = (p * y[:, None]).sum((2, 3))
    return 1 - (2 * both / (p.sum((2, 3)) + y.sum((1, 2)))).mean()


@pytest.mark.parametrize(
    ("compute", "shapes"),
    [
        (
            lambda model, x, y: (model(x).sigmoid() * y).sum() / y.sum(),
            ([N, 1, N, 5], [N, N, 5], [N, N, N, 5]),
        ),
        (lambda model, x, y: ((model(x) > 0) == y).float().mean(), ([N, 1, N, 5], [N, N, 5], [N, N, N, 5])),
        (lambda model, x, y: (model(x)[:, :, 0] - y[:, 0]).abs().mean(), ([N, 1, 5], [N, 5], [N, N, 5])),
        (dice_of_images, ([N, 1], [N], [N, N])),
    ],
)
def test_images_with_and_without_a_channel_are_found(compute, shapes):
    model = nn.Conv2d(3, 1, 3, padding=1)
    with watch_broadcasts(model, (IMAGES, MASKS)) as found:
        compute(model, IMAGES, MASKS)
    (text,) = found
    assert "tensors of shape {} and {} broadcast to {}, so each sample".format(*shapes) in text


@pytest.mark.parametrize(
    "compute",
    [
        lambda model, x, y: (model(x).sigmoid() * y[:, None]).sum(),
        lambda model, x, y: (model(x)[:, 0].sigmoid() * y).sum(),
        lambda model, x, y: (model(x)[:, 0].unsqueeze(1) * y).sum(),
        lambda model, x, y: (model(x).mean(1, keepdim=True)[:, 0] * y).sum(),
        lambda model, x, y: ((y[:, None] - y) ** 2).sum((2, 3)).exp().mean() + model(x).sum(),
        lambda model, x, y: (model(x) * torch.linspace(0, 1, 5) + torch.ones(N, 5)).mean(),
        lambda model, x, y: F.cosine_similarity(model(x).flatten(1)[:, None], y.flatten(1), dim=-1).mean(),
    ],
)
def test_images_that_fit_and_pairs_of_images_are_not_reported(compute):
    model = nn.Conv2d(3, 1, 3, padding=1)
    with watch_broadcasts(model, (IMAGES, MASKS)) as found:
        compute(model, IMAGES, MASKS)
    assert found == []


def squared_distances(model, x, y):
    return (x.pow(2).sum(1, keepdim=True) + y.pow(2).sum(1) - 2 * x @ y.T).mean() + model(x).sum()


def same_labels(model, x, y):
    return ((y.unsqueeze(1) == y) * model(x)).mean()


def ranking(model, x, y):
    scores = model(x)
    return (scores - scores.squeeze(1)).relu().mean() + (y[:, None] > y[None, :]).float().mean()


def fourier_features(model, x, y):
    return (x[:, :1] * torch.arange(N) + model(x)).mean()


def positions(model, x, y):
    place = torch.arange(len(x)).unsqueeze(1).float()
    return (place * torch.linspace(0, 1, N)).mean() + model(x).mean()


@pytest.mark.parametrize(
    ("compute", "batch"),
    [
        (lambda model, x, y: ((model(x) - y) ** 2).mean(), (X, Y[:, None])),
        (lambda model, x, y: ((model(x).squeeze(-1) - y) ** 2).mean(), (X, Y)),
        (lambda model, x, y: (model(x)[:, 0] - y).abs().mean(), (X, Y)),
        (lambda model, x, y: (model(x) - y[None, :]).abs().mean(), (X, Y)),
        (lambda model, x, y: (y.view(-1, 1).float() - model(x).flatten()).abs().mean(), (X, Y)),
        (lambda model, x, y: (model(x) - y).abs().mean(), (X[:1], Y[:1])),
        (squared_distances, (X, X + 1)),
        (same_labels, (X, LABELS)),
        (ranking, (X, Y)),
        (fourier_features, (X, Y)),
        (positions, (X, Y)),
    ],
)
def test_pairs_that_are_meant_are_not_reported(compute, batch):
    assert found_in(compute, *batch) == []


# Each with the arguments after the input and the target.
SILENT_LOSSES = [
    (F.cosine_similarity, {}),
    (F.cosine_similarity, {"dim": 0}),
    (F.gaussian_nll_loss, {"var": torch.ones(N, 1)}),
    (F.gaussian_nll_loss, {"var": torch.ones(N)}),
    (F.hinge_embedding_loss, {}),
    (F.kl_div, {"reduction": "batchmean"}),
    (F.kl_div, {"reduction": "none"}),
    (F.multilabel_soft_margin_loss, {}),
    (F.multilabel_soft_margin_loss, {"reduction": "none"}),
    (F.pairwise_distance, {}),
    (F.poisson_nll_loss, {}),
    (F.poisson_nll_loss, {"reduction": "none"}),
    (torch.dist, {}),
    (torch.linalg.vecdot, {}),
    (torch.Tensor.dist, {}),
    (nn.CosineSimilarity(), {}),
    (nn.GaussianNLLLoss(), {"var": torch.ones(N, 1)}),
    (nn.HingeEmbeddingLoss(), {}),
    (nn.KLDivLoss(reduction="sum"), {}),
    (nn.MultiLabelSoftMarginLoss(), {}),
    (nn.PairwiseDistance(), {}),
    (nn.PoissonNLLLoss(), {}),
]
SILENT_NAMES = [f"{getattr(loss, '__name__', loss)}-{'-'.join(more)}" for loss, more in SILENT_LOSSES]
# Those that raise an error or warn by themselves if the shapes differ.
LOSSES_THAT_TELL = {
    "adaptive_log_softmax_with_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "cosine_embedding_loss", "cross_entropy", "ctc_loss", "huber_loss", "l1_loss",
    "linear_cross_entropy", "margin_ranking_loss", "mse_loss", "multi_margin_loss",
    "multilabel_margin_loss", "nll_loss", "pdist", "smooth_l1_loss", "soft_margin_loss",
    "triplet_margin_loss", "triplet_margin_with_distance_loss",
}  # fmt: skip


def test_each_loss_and_distance_of_torch_is_known():
    parts = ("loss", "entropy", "dist", "similarity", "kl_div")
    names = {name for name in dir(F) if any(part in name for part in parts) and name[0] != "_"}
    silent = {getattr(loss, "__name__", "") for loss, _ in SILENT_LOSSES}
    assert names - silent <= LOSSES_THAT_TELL


@pytest.mark.parametrize("target", [Y.exp(), LABELS.float()], ids=["positive", "labels"])
@pytest.mark.parametrize(("loss", "more"), SILENT_LOSSES, ids=SILENT_NAMES)
def test_a_loss_that_broadcasts_a_column_without_a_warning_is_reported(loss, more, target):
    is_signed = "var" not in more

    def compute(model, x, y):
        out = model(x)
        return loss(out, y, **more), loss(y, out, **more) if is_signed else None

    first = inspect.getsourcelines(compute)[1]
    (text,) = found_in(compute, X, target)
    assert text.startswith(f"at test_broadcasts.py:{first + 2}, ")
    assert f" gets tensors of shape [{N}, 1] and [{N}], which broadcast to [{N}, {N}], so each" in text


@pytest.mark.parametrize(("loss", "more"), SILENT_LOSSES, ids=SILENT_NAMES)
def test_a_loss_of_tensors_that_fit_is_not_reported(loss, more):
    def compute(model, x, y):
        loss(model(x), y.exp()[:, None], **more)
        loss(model(x), torch.ones(1), **more)  # the same target for all
        if "var" not in more:
            loss(y[:, None], y, **more)  # all pairs

    assert found_in(compute, X, Y) == []


def test_a_variance_for_each_sample_is_not_reported():
    def compute(model, x, y, variance):
        return F.gaussian_nll_loss(model(x), y[:, None], variance)

    assert found_in(compute, X, Y, Y.exp()) == []


def test_a_weight_for_each_sample_in_place_of_each_class_is_reported():
    def compute(model, x, y, weight):
        return F.multilabel_soft_margin_loss(model(x), y, weight)

    (text,) = found_in(compute, X, Y[:, None], Y.exp())
    assert "multilabel_soft_margin_loss gets tensors" in text


def test_the_first_step_warns_once_with_the_line(capsys):
    model = nn.Linear(3, 1)

    def loss_of(model, x, y):
        return ((model(x) - y) ** 2).mean()

    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of, tier="eager")
    for _ in range(3):
        step(X, Y)
    err = capsys.readouterr().err
    line = inspect.getsourcelines(loss_of)[1] + 1
    assert err.count(f"TrainStep: at test_broadcasts.py:{line}, tensors of shape") == 1
    assert "broadcast: at test_broadcasts.py" in str(step.report())


def test_a_step_is_the_same_bit_for_bit_if_it_is_watched():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    torch.manual_seed(1)
    want = (model(X) - Y[:, None]).square().mean()
    torch.manual_seed(1)
    with watch_broadcasts(model, (X, Y)):
        got = (model(X) - Y[:, None]).square().mean()
    assert torch.equal(want, got)


def test_a_program_that_compiles_is_not_watched():
    model = nn.Linear(3, 1)
    model.compile(backend="eager")
    with watch_broadcasts(model, (X, Y)) as found:
        assert torch._C._len_torch_function_stack() == 0
    assert found == []


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_have_no_rows():
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.strided)
    with watch_broadcasts(nn.Linear(3, 1), (torch.ones(2, 3), nested)) as found:
        pass
    assert found == []


def test_modes_of_the_user_are_left_in_their_order():
    model = nn.Linear(3, 1)
    with watch_broadcasts(model, (X, Y)):
        with torch.device("cpu"):
            model(X)
        assert torch._C._len_torch_function_stack() == 0
        model(X)
        assert torch._C._len_torch_function_stack() == 1
    assert torch._C._len_torch_function_stack() == 0


def mean_squared(model, x, y):
    return F.mse_loss(model(x), y)


def absolute(model, x, y):
    return nn.L1Loss()(model(x), y)


@pytest.mark.parametrize("loss_of", [mean_squared, absolute])
@pytest.mark.parametrize(
    ("target", "told"),
    [
        (
            Y,
            f"input of shape [{N}, 1] and a target of shape [{N}], which broadcast to [{N}, {N}], so each",
        ),
        (
            torch.randn(N, 4),
            f"a target of shape [{N}, 4], which broadcast to [{N}, 4]. Give both the same",
        ),
    ],
)
def test_a_loss_of_torch_with_different_shapes_is_reported_once_with_the_line(
    loss_of, target, told, capsys, recwarn
):
    model = nn.Linear(3, 1)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of, tier="eager")
    for rows in (N, N, N - 2):  # torch would warn of each size
        step(X[:rows], target[:rows])
    err = capsys.readouterr().err
    line = inspect.getsourcelines(loss_of)[1] + 1
    assert err.count(f"at test_broadcasts.py:{line}, ") == err.count("which broadcast to") == 1
    assert told in err
    assert not recwarn.list


def test_the_warning_of_a_loss_is_not_lost_if_the_step_fails(recwarn):
    def fails(model, x, y):
        return mean_squared(model, x, y) + undefined  # noqa: F821

    with pytest.raises(NameError):
        found_in(fails, X, Y)
    (warned,) = recwarn.list
    line = inspect.getsourcelines(mean_squared)[1] + 1
    assert (warned.filename, warned.lineno) == (__file__, line)
    assert "Using a target size" in str(warned.message)


@pytest.mark.parametrize("action", ["ignore", "error"])
def test_the_filters_of_the_program_apply_to_the_warning_of_a_loss(action):
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        if action == "ignore":
            assert found_in(mean_squared, X, Y) == []
        else:
            with pytest.raises(UserWarning, match="Using a target size"):
                found_in(mean_squared, X, Y)


def copies(model, x, y):
    return F.mse_loss(model(x)[:, 0], torch.tensor(y))


def deprecated(model, x, y):
    return F.softmax(model(x)[:, 0]).sum()


@pytest.mark.parametrize("compute", [copies, deprecated])
def test_any_warning_of_torch_has_the_line_of_the_program_and_is_shown_once(compute):
    model = nn.Linear(3, 1)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(2):
            with watch_broadcasts(model, (X, Y)):
                compute(model, X, Y)
        compute(model, X, Y)
    line = inspect.getsourcelines(compute)[1] + 1
    assert [(each.filename, each.lineno) for each in shown] == [(__file__, line)]


@pytest.mark.filterwarnings("default")
def test_warnings_are_shown_as_before_after_a_step_was_watched():
    shown = warnings.showwarning
    found_in(mean_squared, X, Y)
    assert warnings.showwarning is shown
