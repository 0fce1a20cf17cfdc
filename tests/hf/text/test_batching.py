import io

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
