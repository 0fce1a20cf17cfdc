"""A difference is visible in its line, however long the values are."""

from flodl.train.record.changes import changes


def test_long_values_show_the_part_that_differs():
    rows = [f"30 items #{number:08x}" for number in range(40)]
    (line,) = changes("step.rows", [*rows[:-1], "30 items #ffffffff"], rows)
    now, _, before = line.partition(", was ")
    assert now.startswith("step.rows is now …")
    assert "#ffffffff" in now
    assert rows[-1] in before
    assert len(line) < 400


def test_long_values_that_differ_at_the_start_are_cut_at_the_end():
    (line,) = changes("step.text", "a" * 500, "b" * 500)
    assert line == f"step.text is now '{'a' * 159}…, was '{'b' * 159}…"


def test_a_long_value_that_got_longer_shows_its_end():
    rows = list(range(100))
    (line,) = changes("step.rows", [*rows, 100], rows)
    assert "99, 100], was …" in line
    assert line.endswith("98, 99]")


def test_a_value_that_is_missing_is_not_one_that_is_none():
    assert [*changes("step", {"a": 1}, {"b": None})] == [
        "step.a is now 1, was not there",
        "step.b is no longer there, was None",
    ]
    assert [*changes("step", {"b": None}, {"b": 2})] == ["step.b is now None, was 2"]
