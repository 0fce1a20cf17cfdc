import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flodl.data import digits


def test_images_and_labels_have_the_documented_shapes():
    images, labels = digits(57, seed=3)
    assert (images.shape, images.dtype) == ((57, 1, 28, 28), torch.float32)
    assert (labels.shape, labels.dtype) == ((57,), torch.int64)
    assert images.min() >= 0
    assert images.max() <= 1


def test_the_size_is_configurable():
    assert digits(4, size=16)[0].shape == (4, 1, 16, 16)
    assert digits(4, size=64)[0].shape == (4, 1, 64, 64)


def test_the_seed_determines_everything():
    one, other = digits(300, seed=5), digits(300, seed=5)
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])
    assert not torch.equal(one[0], digits(300, seed=6)[0])


def test_the_global_rng_state_does_not_change():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    digits(20)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("count", [1, 10, 1024, 1033])
def test_classes_are_as_balanced_as_the_count_allows(count):
    counts = digits(count)[1].bincount(minlength=10)
    assert counts.sum() == count
    assert counts.max() - counts.min() <= 1


def test_images_have_ink_in_the_middle_and_an_empty_border():
    images, _ = digits(500)
    assert images.amax(dim=(1, 2, 3)).min() > 0.6
    assert images.mean(dim=(1, 2, 3)).max() < 0.4
    # The pen hardly ever leaves the image.
    border = torch.cat([images[..., 0, :], images[..., -1, :], images[..., :, 0], images[..., :, -1]], dim=-1)
    assert (border > 0.5).float().mean() < 0.005


def test_no_two_images_are_alike():
    images, labels = digits(400)
    ones = images[labels == 1].flatten(1)
    distances = torch.cdist(ones, ones) + 1e9 * torch.eye(len(ones))
    assert distances.min() > 1


def test_a_linear_model_finds_them_hard():
    images, labels = digits(3000)
    test_images, test_labels = digits(500, seed=1)
    torch.manual_seed(0)
    model = nn.Linear(784, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        loss = cross_entropy(model(images.flatten(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = (model(test_images.flatten(1)).argmax(dim=1) == test_labels).float().mean()
    assert 0.5 < right < 0.92


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: digits(0), "count=0. Pass an integer >= 1."),
        (lambda: digits(-3), "count=-3"),
        (lambda: digits(None), "count=None"),
        (lambda: digits(1, size=4), "size=4. Pass 12 to 128 pixels."),
    ],
)
def test_wrong_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()
