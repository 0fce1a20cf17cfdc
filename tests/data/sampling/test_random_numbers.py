"""Random numbers depend on the sample, not on its batch."""

import pytest
import torch

from flodl.data.sampling.order import sample_keys
from flodl.data.sampling.random_numbers import Chance, EpochChance, StreamChance

KEYS = sample_keys(11, torch.arange(4000))


def draws(chance):
    return [
        chance.uniform(),
        chance.integers(7),
        chance.coin(0.3),
        chance.uniform(2, 3),
        chance.normal(),
        chance.uniform(40),
    ]


def test_part_of_a_batch_draws_the_same_numbers():
    whole = draws(Chance(KEYS))
    part = draws(Chance(KEYS[1000:1064]))
    assert all(torch.equal(mine[1000:1064], its) for mine, its in zip(whole, part))


def test_drawing_for_a_whole_epoch_returns_the_same_numbers():
    epoch = EpochChance(KEYS)
    for start, stop in ((0, 64), (64, 128), (3990, 4000)):
        cut = draws(epoch.between(start, stop))
        assert all(torch.equal(a, b) for a, b in zip(cut, draws(Chance(KEYS[start:stop]))))


def test_drawing_for_a_block_at_a_time_returns_the_same_numbers(monkeypatch):
    monkeypatch.setattr("flodl.data.sampling.random_numbers.BLOCK_SAMPLES", 100)
    passing = StreamChance(11, torch.device("cpu"))
    for start, stop in ((7, 64), (64, 107), (107, 128), (128, 600), (600, 664), (0, 8), (3990, 4000)):
        cut = draws(passing.between(start, stop))
        assert all(torch.equal(a, b) for a, b in zip(cut, draws(Chance(KEYS[start:stop]))))


def test_draws_follow_their_distributions():
    chance = Chance(KEYS)
    uniform = chance.uniform()
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.03
    counts = chance.integers(5).bincount(minlength=5)
    assert len(counts) == 5
    assert (counts - 800).abs().max() < 130
    assert abs(chance.coin(0.2).float().mean() - 0.2) < 0.03
    normal = chance.normal()
    assert abs(normal.mean()) < 0.08
    assert abs(normal.std() - 1) < 0.06


def test_consecutive_draws_differ():
    chance = Chance(KEYS)
    first, second = chance.uniform(), chance.uniform()
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.06


def test_neighboring_samples_are_uncorrelated():
    uniform = Chance(KEYS).uniform()
    assert abs(torch.corrcoef(torch.stack([uniform[1:], uniform[:-1]]))[0, 1]) < 0.06


def test_draws_have_the_requested_shape():
    chance = Chance(KEYS[:5])
    assert (len(chance), chance.device) == (5, torch.device("cpu"))
    assert chance.uniform().shape == (5,)
    assert chance.integers(3, 2).shape == (5, 2)
    assert chance.normal(3, 4).shape == (5, 3, 4)


def test_probabilities_0_and_1_are_certain():
    chance = Chance(KEYS)
    assert not chance.coin(0.0).any()
    assert chance.coin(1.0).all()
    assert not chance.integers(1).any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda chance: chance.coin(1.5), "p=1.5. Pass a probability between 0 and 1."),
        (lambda chance: chance.integers(0), "bound=0. Pass an integer from 1 to 2"),
    ],
)
def test_wrong_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call(Chance(KEYS))


def test_an_epoch_can_repeat_the_draws_of_the_previous_one_in_advance():
    first, second = EpochChance(KEYS), EpochChance(KEYS + 1)
    first.between(0, 2).integers(9, 2)
    first.between(0, 2).coin(0.5)
    second.draw_same_as(first)
    assert list(second.cache) == list(first.cache)
    part = second.between(1, 3)
    assert torch.equal(part.integers(9, 2), Chance(KEYS[1:3] + 1).integers(9, 2))


def test_changing_a_draw_in_place_has_no_effect():
    epoch = EpochChance(KEYS)
    expected = epoch.between(0, 3).uniform().clone()
    epoch.between(0, 3).uniform().mul_(2)
    assert torch.equal(epoch.between(0, 3).uniform(), expected)
    shared = epoch.between(0, 3, shared=True).uniform()
    assert shared.data_ptr() == epoch.between(0, 3, shared=True).uniform().data_ptr()


def test_only_a_few_draws_of_an_epoch_are_cached():
    epoch = EpochChance(KEYS)
    for bound in range(1, 100):
        found = epoch.between(1, 4).integers(bound)
        assert torch.equal(found, Chance(KEYS[1:4]).integers(bound))
    assert len(epoch.cache) == 16
