"""Random streams that can be saved, forked and repeated."""

import json
import random

import numpy as np
import pytest
import torch

from flodl import Rng, manual_seed


def draws(rng: Rng) -> list[object]:
    items = list(range(9))
    rng.shuffle(items)
    return [
        rng.integer(1000),
        rng.range(-5, 5),
        rng.uniform(),
        rng.normal(2.0, 3.0),
        rng.bernoulli(0.5),
        rng.permutation(5),
        items,
    ]


def test_equal_seeds_give_equal_streams():
    assert draws(Rng(7)) == draws(Rng(7)) != draws(Rng(8))


def test_a_stream_continues_from_a_saved_state():
    rng = Rng(7)
    draws(rng)
    saved = json.loads(json.dumps(rng.state_dict()))
    expected = draws(rng)
    fresh = Rng(99)
    fresh.load_state_dict(saved)
    assert draws(fresh) == expected
    assert fresh.seed == 7
    assert draws(fresh.fork("x")) == draws(Rng(7).fork("x"))


def test_without_a_seed_one_is_drawn_that_repeats_the_stream():
    rng = Rng()
    assert Rng(rng.seed).uniform() == rng.uniform()
    assert Rng().seed != rng.seed


def test_a_fork_depends_on_the_seed_and_the_name_alone():
    used = Rng(3)
    draws(used)
    assert draws(used.fork("order")) == draws(Rng(3).fork("order"))
    assert draws(Rng(3).fork("order")) != draws(Rng(3).fork("augment"))
    assert draws(Rng(3).fork("order")) != draws(Rng(4).fork("order"))
    assert draws(Rng(3)) != draws(Rng(3).fork(""))


def test_draws_stay_in_their_range():
    rng = Rng(0)
    assert {rng.integer(3) for _ in range(99)} == {0, 1, 2}
    assert {rng.range(-1, 1) for _ in range(99)} == {-1, 0}
    assert all(0.0 <= rng.uniform() < 1.0 for _ in range(99))
    assert sorted(rng.permutation(7)) == list(range(7))
    assert [rng.bernoulli(0.0), rng.bernoulli(1.0)] == [False, True]
    assert abs(sum(rng.normal(5.0, 0.1) for _ in range(99)) / 99 - 5.0) < 0.1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Rng(-1), "the seed is -1"),
        (lambda: Rng("7"), "the seed is '7'; expected None or an integer of at least 0"),
        (lambda: Rng(1.5), "the seed is 1.5; expected None or an integer"),
        (lambda: Rng(True), "the seed is True"),
        (lambda: Rng(0).integer(0), "bound=0: the range is empty"),
        (lambda: Rng(0).integer(2.5), "bound=2.5; expected an integer"),
        (lambda: Rng(0).range(0.5, 3), "low=0.5; expected an integer"),
        (lambda: Rng(0).range(0, "3"), "high='3'; expected an integer"),
        (lambda: Rng(0).permutation(2.5), "count=2.5; expected an integer"),
        (lambda: Rng(0).permutation(-1), "count=-1; expected an integer of at least 0"),
        (lambda: Rng(0).range(3, 2), "low=3, high=2: the range is empty"),
        (lambda: Rng(0).bernoulli(1.5), "p is 1.5"),
        (lambda: Rng(0).normal(std=-1.0), "std is -1.0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()


def test_numpy_integers_are_seeds_and_bounds():
    import numpy as np

    assert Rng(np.int64(7)).seed == 7
    assert Rng(np.int64(7)).integer(np.int32(100)) == Rng(7).integer(100)


def test_one_call_repeats_python_numpy_and_torch():
    def sample() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        manual_seed(5)
        first = sample()
        manual_seed(5)
        assert sample() == first
        manual_seed(6)
        assert not set(sample()) & set(first)
        manual_seed(2**40)
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])
        torch.set_rng_state(state[2])
