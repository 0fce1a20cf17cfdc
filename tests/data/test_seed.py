"""The seed of a loader: given, that of manual_seed, or 0; a cursor brings its own."""

import json

import pytest
import torch

import flodl
from flodl.core import CursorError
from flodl.core.rng import default_seed
from flodl.data import Loader, RandomCrop

DATA = torch.arange(40)


def order(**settings):
    return torch.cat(list(Loader(DATA, 8, **settings))).tolist()


def test_without_any_seed_it_is_0():
    assert Loader(DATA, 8).seed == 0
    assert order() == order(seed=0)


@pytest.mark.parametrize("seeded_by", [flodl.manual_seed, torch.manual_seed])
def test_the_default_seed_is_that_of_manual_seed(seeded_by):
    orders = []
    for seed in range(5):
        seeded_by(seed)
        assert Loader(DATA, 8).seed == seed
        orders.append(order())
        assert orders[-1] == order(seed=seed)
    assert len({tuple(each) for each in orders}) == 5


def test_an_explicit_seed_wins():
    flodl.manual_seed(3)
    assert Loader(DATA, 8, seed=0).seed == 0
    assert order(seed=0) != order()


def test_the_last_of_several_calls_counts():
    flodl.manual_seed(3)
    torch.manual_seed(4)
    assert default_seed() == 4
    flodl.manual_seed(5)
    assert default_seed() == 5


def test_large_seeds_are_known_only_from_flodl():
    torch.manual_seed(2**40)
    assert default_seed() == 0
    flodl.manual_seed(2**40)
    assert default_seed() == 2**40
    torch.seed()
    assert default_seed() == 2**40


def test_random_draws_do_not_change_the_default_seed():
    flodl.manual_seed(3)
    torch.rand(5)
    list(Loader(DATA, 8, transform=lambda sample: sample + torch.rand(())))
    assert default_seed() == 3


def test_the_seed_is_fixed_when_the_loader_is_created():
    flodl.manual_seed(1)
    loader = Loader(DATA, 8)
    epochs = []
    for seed in (7, 8):
        torch.manual_seed(seed)
        epochs.append(torch.cat(list(loader)).tolist())
    assert loader.seed == 1
    again = Loader(DATA, 8, seed=1)
    assert epochs == [torch.cat(list(again)).tolist() for _ in range(2)]


def test_augmentations_and_transforms_follow_the_default_seed():
    images = torch.randint(0, 256, (16, 3, 8, 8), dtype=torch.uint8)
    for settings in ({"augment": RandomCrop(2)}, {"transform": lambda image: image + torch.rand(())}):
        torch.manual_seed(1)
        first = next(iter(Loader(images, 16, shuffle=False, **settings)))
        torch.manual_seed(2)
        second = next(iter(Loader(images, 16, shuffle=False, **settings)))
        assert not torch.equal(first, second)


def test_a_resumed_loader_continues_with_the_seed_of_the_cursor(capsys):
    flodl.manual_seed(1)
    saved = Loader(DATA, 8)
    batches = iter(saved)
    next(batches)
    state = json.loads(json.dumps(saved.state_dict()))
    flodl.manual_seed(2)
    resumed = Loader(DATA, 8)
    resumed.load_state_dict(state)
    assert resumed.seed == 1
    assert "the saved order continues, with seed 1; seed 2 is not used" in capsys.readouterr().out
    for rest in (batches, saved):
        assert torch.equal(torch.cat(list(resumed)), torch.cat(list(rest)))


def test_a_cursor_with_another_seed_than_the_explicit_one_raises():
    state = Loader(DATA, 8, seed=1).state_dict()
    loader = Loader(DATA, 8, seed=2)
    with pytest.raises(CursorError, match=r"saved with seed=1, but this loader has 2\. .* or omit seed="):
        loader.load_state_dict(state)
    assert loader.seed == 2


def test_a_rejected_cursor_does_not_change_the_seed():
    state = Loader(torch.arange(30), 8, seed=1).state_dict()
    loader = Loader(DATA, 8)
    with pytest.raises(CursorError, match="num_samples=30"):
        loader.load_state_dict(state)
    assert loader.seed == 0
    with pytest.raises(CursorError, match="seed='x'; expected an integer"):
        loader.load_state_dict({**loader.state_dict(), "seed": "x"})


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, "7"])
def test_an_invalid_seed_raises(seed):
    with pytest.raises(ValueError, match="expected an integer from 0 to"):
        flodl.manual_seed(seed)


@pytest.mark.slow
def test_a_new_process_has_the_default_seed_0(warm_python, tmp_path):
    code = "from flodl.core.rng import default_seed; print(default_seed())"
    printed = [warm_python.run("-c", code, cwd=tmp_path).stdout for _ in range(2)]
    assert printed == ["0\n", "0\n"]
