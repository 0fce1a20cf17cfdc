import io
from random import Random

import pytest

from flodl.core import HFError
from flodl.hf.text import plan_batches
from flodl.hf.text.progress import progress_bar


def test_every_text_is_in_one_batch_and_no_batch_is_too_large(fuzz):
    def check(rng):
        lengths = [rng.randint(0, 60) for _ in range(rng.randint(0, 50))]
        size, budget = rng.randint(1, 9), rng.randint(1, 200)
        batches = plan_batches(lengths, batch_size=size, max_tokens=budget)
        assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
        for batch in batches:
            longest = max(lengths[index] for index in batch)
            assert len(batch) <= size
            assert len(batch) == 1 or len(batch) * longest <= budget

    fuzz(check)


@pytest.mark.parametrize("name", ["batch_size", "max_tokens"])
def test_a_size_below_one_raises(name):
    with pytest.raises(HFError, match=f"{name} is 0; expected an integer of at least 1"):
        plan_batches([1], **{name: 0})


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_appears_on_a_terminal_after_a_second():
    now, stream = [0.0], Terminal()
    with progress_bar(10, stream=stream, clock=lambda: now[0]) as advance:
        advance(3)
        assert stream.getvalue() == ""
        now[0] = 1.5
        advance(4)
    assert "7/10" in stream.getvalue()


def test_there_is_no_bar_in_a_file():
    now, stream = [0.0], io.StringIO()
    with progress_bar(10, stream=stream, clock=lambda: now[0]) as advance:
        now[0] = 9.0
        advance(10)
    assert stream.getvalue() == ""


def test_the_bar_can_be_turned_on_and_off():
    terminal, file = Terminal(), io.StringIO()
    with progress_bar(10, show=False, stream=terminal, clock=lambda: 9.0) as advance:
        advance(10)
    with progress_bar(10, show=True, stream=file) as advance:
        advance(10)
    assert terminal.getvalue() == ""
    assert "10/10" in file.getvalue()


def test_batches_are_cut_where_padding_costs_more_than_a_batch():
    lengths = [90, 40, 39, 10, 10, 9]
    assert plan_batches(lengths, batch_size=4) == [[0, 1, 2, 3], [4, 5]]
    assert plan_batches(lengths, batch_size=4, batch_cost=8) == [[0], [1, 2], [3, 4, 5]]
    assert plan_batches(lengths, batch_size=4, batch_cost=10**6) == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("cost", [0, 5, 64, 1000])
def test_cut_batches_keep_the_limits_and_cost_no_more_than_full_ones(cost):
    random = Random(cost)
    lengths = [random.randrange(1, 80) for _ in range(200)]
    limits = {"batch_size": 16, "max_tokens": 600}

    def total(plan):
        return sum(cost + max(lengths[index] for index in batch) * len(batch) for batch in plan)

    found = plan_batches(lengths, **limits, batch_cost=cost)
    assert sorted(index for batch in found for index in batch) == list(range(200))
    assert all(len(batch) <= 16 and max(lengths[i] for i in batch) * len(batch) <= 600 for batch in found)
    assert total(found) <= total(plan_batches(lengths, **limits))
