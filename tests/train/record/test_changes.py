"""A difference is visible in its line, however long the values are."""

from flodl.train.record.changes import changed_modules, changes


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


def test_of_a_module_with_many_settings_only_those_that_differ_are_shown():
    def text(rate, **more):
        settings = {"name": "a name, with a comma", "sizes": list(range(20)), "rate": rate, **more}
        return {"modules": {"body": f"Net({', '.join(f'{key}={one!r}' for key, one in settings.items())})"}}

    assert [*changed_modules(text(0.1), text(0.2))] == [
        "model.body is now 'Net(…, rate=0.1)', was 'Net(…, rate=0.2)'"
    ]
    (line,) = changed_modules(text(0.1, depth=2), text(0.1))
    assert "depth=2" in line
    assert [*changed_modules({"modules": {"a": "Net(p=1, q=2)"}}, {"modules": {"a": "Net(p=1, q=3)"}})] == [
        "model.a is now 'Net(p=1, q=2)', was 'Net(p=1, q=3)'"
    ]
