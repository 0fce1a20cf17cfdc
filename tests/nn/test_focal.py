import pytest
import torch
from torch.nn import functional

from flodl.core import ShapeError
from flodl.nn import FocalLoss, focal_loss


def _sample(*shape, dtype=torch.float64):
    torch.manual_seed(0)
    logits = torch.randn(*shape, dtype=dtype)
    return logits, torch.randint(shape[1], (shape[0], *shape[2:]))


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (2, 3, 4, 4)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gamma_zero_is_cross_entropy(shape, reduction):
    logits, target = _sample(*shape)
    target.view(-1)[1] = -100
    expected = functional.cross_entropy(logits, target, reduction=reduction)
    torch.testing.assert_close(focal_loss(logits, target, 1.0, 0.0, reduction=reduction), expected)


def test_it_follows_the_formula():
    logits, target = _sample(6, 3)
    p = logits.softmax(dim=1)[torch.arange(6), target]
    torch.testing.assert_close(focal_loss(logits, target, 0.25, 2.0), (-0.25 * (1 - p) ** 2 * p.log()).mean())


def test_one_sample_without_a_batch_is_accepted():
    logits, target = _sample(1, 3)
    torch.testing.assert_close(focal_loss(logits[0], target[0]), focal_loss(logits, target))


def test_weights_may_be_given_for_each_class():
    logits, target = _sample(6, 3)
    target[2] = -100
    alpha = torch.tensor([0.2, 0.3, 0.5])
    plain = focal_loss(logits, target, reduction="none")
    expected = plain * alpha.double()[target.clamp(min=0)]
    torch.testing.assert_close(focal_loss(logits, target, alpha, reduction="none"), expected)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 3.7])
def test_the_gradient_is_right(gamma):
    logits, target = _sample(5, 3)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: focal_loss(z, target, 0.7, gamma, reduction="none"), logits)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_a_certain_prediction_has_a_finite_gradient(gamma):
    logits = torch.tensor([[200.0, 0.0], [0.0, 200.0]], requires_grad=True)
    focal_loss(logits, torch.tensor([0, 0]), gamma=gamma).backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_floating_point_dtype_is_preserved(dtype):
    logits, target = _sample(6, 3, dtype=dtype)
    loss = focal_loss(logits, target.to(torch.int32))
    assert loss.dtype == dtype
    assert float(loss) == pytest.approx(float(focal_loss(logits.double(), target)), rel=2e-2)


def test_the_module_calls_the_function_with_its_settings():
    logits, target = _sample(6, 3)
    alpha = torch.tensor([0.2, 0.3, 0.5])
    module = FocalLoss(alpha, 1.5, reduction="sum")
    torch.testing.assert_close(
        module(logits, target), focal_loss(logits, target, alpha, 1.5, reduction="sum")
    )
    assert "alpha" in module.state_dict()
    assert repr(module) == "FocalLoss(alpha=<3 classes>, gamma=1.5, reduction='sum', ignore_index=-100)"


@pytest.mark.parametrize(
    "target",
    [torch.zeros(6), torch.zeros(6, 3, dtype=torch.int64), torch.zeros(5, dtype=torch.int64)],
    ids=["float", "one-hot", "short"],
)
def test_a_target_that_is_not_one_class_per_sample_is_refused(target):
    with pytest.raises(
        ShapeError, match=r"the target is torch\.\w+ of shape .* logits of shape \[6, 3\]\. Pass logits"
    ):
        focal_loss(torch.zeros(6, 3), target)


def test_weights_for_a_wrong_number_of_classes_are_refused():
    logits, target = _sample(6, 3)
    with pytest.raises(
        ShapeError, match=r"alpha has shape \[2\] for logits of 3 classes\. Pass one weight per class"
    ):
        focal_loss(logits, target, torch.ones(2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": -1.0}, r"alpha=-1\.0, expected a finite weight of at least 0"),
        ({"gamma": -1.0}, r"gamma=-1\.0, expected a finite number of at least 0; 0 is cross-entropy"),
        ({"gamma": float("nan")}, r"gamma=nan"),
        ({"reduction": "average"}, r"reduction='average', expected 'mean', 'sum' or 'none'"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        FocalLoss(**settings)
    with pytest.raises(ValueError, match=message):
        focal_loss(*_sample(6, 3), **settings)


def test_values_that_are_not_tensors_are_an_error():
    with pytest.raises(ShapeError, match=r"the logits are a list\. Pass a tensor"):
        focal_loss([0.5], torch.ones(1))
    with pytest.raises(ShapeError, match=r"the target is an int\. Pass a tensor"):
        focal_loss(torch.ones(1, 2), 1)
