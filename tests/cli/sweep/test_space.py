"""The values and ranges of a sweep, and the searches over them."""

import random

import pytest

from flodl.cli.sweep.observation import Observation
from flodl.cli.sweep.search import make_search, note_of
from flodl.cli.sweep.space import Choices, Range, dimension_of, grid, parse_dimension
from flodl.core.errors import SetupError


def test_a_list_of_values_keeps_their_types():
    assert parse_dimension("x=1,2.5,true,relu").values == (1, 2.5, True, "relu")


def test_an_option_is_found_under_either_spelling():
    assert (
        parse_dimension("--batch_size=32,64").name == parse_dimension("batch-size=32,64").name == "batch-size"
    )


def test_a_range_of_integers_gives_integers_within_it():
    values = parse_dimension("hidden=8..512:log:4").points()
    assert values == (8, 32, 128, 512)
    assert all(isinstance(value, int) for value in values)


def test_a_range_includes_both_of_its_ends():
    assert Range("lr", 0.1, 0.3, steps=3).points() == (0.1, 0.2, 0.3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "has no values"),
        ("lr=", "has no values"),
        ("lr=1..1", "is empty. Write the smaller number first"),
        ("lr=1..b", "'b' is not a number"),
        ("lr=1..2,3", "'1..2' is a range, which cannot be an item of a list"),
        ("lr=0..1:log", "a log scale starts above 0"),
        ("lr=1..2:cubic", "'cubic' after the range 1..2 is neither a scale"),
        ("lr=1..2:log:linear", "'1..2:log:linear' is not a range. Write FROM..TO"),
        ("lr=1..2:0", "0 values are not possible"),
        ("lr=1,2,1", "a value is listed twice"),
        ("lr=1e999,1", "out of range"),
    ],
)
def test_a_wrong_dimension_is_an_error(text, message):
    with pytest.raises(SetupError, match=message):
        parse_dimension(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("data=reviews.tsv,../mr.csv", ("reviews.tsv", "../mr.csv")),
        ("model=../a,../b", ("../a", "../b")),
        ('data="../mr.csv",reviews.tsv', ("../mr.csv", "reviews.tsv")),
        ("data=../mr.csv", ("../mr.csv",)),
        ("data=1/../2", ("1/../2",)),
    ],
)
def test_paths_with_two_dots_are_values_and_not_a_range(text, values):
    assert parse_dimension(text).values == values


def test_a_path_with_two_dots_in_a_manifest_is_a_value():
    assert dimension_of("data", "../mr.csv", "fdl.yml:3").values == ("../mr.csv",)


def test_a_manifest_writes_a_range_as_a_map_or_as_text():
    written = {"from": 1e-4, "to": 1e-1, "scale": "log", "steps": 4}
    expected = Range("lr", 1e-4, 1e-1, log=True, steps=4, origin="fdl.yml:3")
    assert dimension_of("lr", written, "fdl.yml:3") == expected
    assert dimension_of("lr", "1e-4..1e-1:log:4", "fdl.yml:3") == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"from": 1}, "`from:` and `to:` are required"),
        ({"from": 1, "to": 2, "step": 1}, "unknown key 'step'"),
        ([], "there are no values"),
        ([[1]], "cannot be swept"),
    ],
)
def test_a_wrong_dimension_of_a_manifest_is_an_error_with_its_line(value, message):
    with pytest.raises(SetupError, match=f"^fdl.yml:3: .*{message}"):
        dimension_of("lr", value, "fdl.yml:3")


def test_a_grid_needs_the_number_of_values_of_a_range():
    with pytest.raises(SetupError, match=r"Write lr=0\.1\.\.1:log:4"):
        grid([Range("lr", 0.1, 1.0, log=True, origin="--over")])


def test_random_values_depend_only_on_the_seed_and_the_number():
    space = [Range("lr", 1e-4, 1e-1, log=True), Choices("hidden", (1, 2, 3))]
    first = make_search("random", space, num_runs=4, seed=1)
    again = make_search("random", space, num_runs=8, seed=1)
    values = [first.propose(number, [], "min") for number in range(4)]
    assert values == [again.propose(number, [], "max") for number in range(4)]
    assert len({value["lr"] for value in values}) == 4
    assert all(1e-4 <= value["lr"] <= 1e-1 for value in values)
    other = make_search("random", space, num_runs=4, seed=2)
    assert other.propose(0, [], "min") != values[0]


def test_random_runs_over_lists_do_not_repeat_a_combination():
    search = make_search("random", [Choices("a", (1, 2)), Choices("b", (1, 2))], num_runs=9, seed=0)
    found = {tuple(search.propose(number, [], "min").items()) for number in range(search.num_runs)}
    assert search.num_runs == len(found) == 4


@pytest.mark.parametrize("over", [["seed=0..3"], ["n=1..2", "a=x,y"], ["n=1..4:log"]])
def test_random_runs_over_ranges_of_integers_do_not_repeat_a_combination(over):
    search = make_search("random", [parse_dimension(text) for text in over], num_runs=10, seed=0)
    found = {tuple(search.propose(number, [], "min").values()) for number in range(search.num_runs)}
    assert search.num_runs == len(found) == 4
    assert "4 combinations, so there are 4 runs instead of 10" in note_of(search)


def test_a_rare_combination_is_found_when_all_others_have_run():
    search = make_search("random", [parse_dimension("n=1..20000:log")], num_runs=20_000, seed=0)
    observed = [Observation({"n": number}) for number in range(1, 20_000)]
    assert search.propose(0, observed, "min") == {"n": 20_000}


def test_a_space_with_fractions_or_enough_combinations_says_nothing():
    for text in ("lr=0.1..0.9", "seed=0..9", "seed=1,2,3,4,5,6,7,8,9,10", f"seed=0..{10**18}"):
        search = make_search("random", [parse_dimension(text)], num_runs=10, seed=0)
        assert search.num_runs == 10
        assert note_of(search) == ""


def test_random_values_without_repeats_are_those_of_independent_draws():
    space = [parse_dimension("n=0..1000000"), parse_dimension("a=1,2")]
    search = make_search("random", space, num_runs=5, seed=3)
    for number in range(5):
        rng = random.Random(f"3 {number}")
        expected = {dimension.name: dimension.sample(rng) for dimension in space}
        assert search.propose(number, [], "min") == expected


def test_a_random_search_that_is_created_again_proposes_the_same_and_skips_what_has_run():
    space = [parse_dimension("seed=0..9")]
    first, again = (make_search("random", space, num_runs=count, seed=0) for count in (6, 10))
    values = [first.propose(number, [], "min") for number in range(6)]
    observed = [Observation(one) for one in values[:3]]
    assert [again.propose(number, observed, "min") for number in range(3, 6)] == values[3:]
    without_second = [Observation(one) for one in (values[0], *values[2:])]
    assert again.propose(1, without_second, "min") == values[1]
    # An earlier version of flodl has run this one twice.
    repeated = [Observation(values[3]), Observation(values[3])]
    assert again.propose(3, repeated, "min") != values[3]


def test_many_runs_over_a_large_list_of_combinations_are_random_ones():
    space = [Choices(name, tuple(range(50))) for name in "abc"]
    search = make_search("random", space, num_runs=20, seed=0)
    assert len({tuple(search.propose(number, [], "min").values()) for number in range(20)}) == 20


def test_a_grid_with_another_number_of_runs_is_an_error():
    with pytest.raises(SetupError, match="the grid has 2 runs, but 3 were requested"):
        make_search("grid", [Choices("a", (1, 2))], num_runs=3, seed=0)


def test_without_optuna_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(SetupError, match=r'pip install "flodl\[sweep\]"'):
        make_search("tpe", [Choices("a", (1, 2))], num_runs=3, seed=0)


def run_search(search, mode, num_runs):
    observed = []
    for number in range(num_runs):
        values = search.propose(number, observed, mode)
        observed.append(Observation(values, (values["x"] - 0.3) ** 2 * (1 if mode == "min" else -1)))
    return observed


@pytest.mark.parametrize("mode", ["min", "max"])
def test_tpe_proposes_better_values_as_results_arrive(mode):
    pytest.importorskip("optuna")
    space = [Range("x", -4.0, 4.0), Range("width", 8, 512, log=True), Choices("kind", ("a", "b"))]
    search = make_search("tpe", space, num_runs=30, seed=0)
    observed = run_search(search, mode, 30)
    errors = [abs(observation.values["x"] - 0.3) for observation in observed]
    assert sum(errors[20:]) / 10 < sum(errors[:10]) / 10
    assert all(isinstance(observation.values["width"], int) for observation in observed)


def test_a_search_that_is_created_again_continues_as_the_uninterrupted_one():
    pytest.importorskip("optuna")
    space = [Range("x", -4.0, 4.0)]
    whole = run_search(make_search("tpe", space, num_runs=14, seed=3), "min", 14)
    resumed = make_search("tpe", space, num_runs=14, seed=3)
    assert resumed.propose(13, whole[:13], "min") == whole[13].values
