"""Searchers of Ray Tune: what they propose, and that a sweep with them can be resumed."""

import subprocess
import sys
from typing import get_args, get_type_hints

import pytest

from flodl.cli import main
from flodl.cli.manifest.model import Sweep
from flodl.cli.sweep.observation import Observation
from flodl.cli.sweep.ray_search import RAY_SEARCHES
from flodl.cli.sweep.search import SEARCHES, make_search
from flodl.cli.sweep.space import Choices, Range
from flodl.core.errors import SetupError

FLOATS = [Range("x", -4.0, 4.0), Range("lr", 1e-4, 1e-1, log=True)]
SPACES = {
    "ray:bayesopt": FLOATS,
    "ray:hyperopt": [
        *FLOATS,
        Range("width", 8, 512, log=True),
        Range("depth", 1, 3),
        Choices("kind", ("relu", 1, True, 1.0, "1")),
        Choices("preset", ("quick",)),
    ],
}
SPACES["ray:optuna"] = SPACES["ray:hyperopt"]


@pytest.fixture(params=RAY_SEARCHES)
def name(request):
    return installed(request.param)


def installed(name):
    try:
        make_search(name, FLOATS, num_runs=1, seed=0)
    except SetupError as error:
        pytest.skip(str(error))
    return name


def search_for(name, seed=0):
    return make_search(name, SPACES[name], num_runs=30, seed=seed)


def observe(values, mode="min"):
    return Observation(values, (values["x"] - 0.3) ** 2 * (1 if mode == "min" else -1))


def searched(name, mode, num_runs):
    search, observed = search_for(name), []
    for number in range(num_runs):
        observed.append(observe(search.propose(number, observed, mode), mode))
    return observed


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["min", "max"])
def test_values_are_those_of_the_space_and_become_better_as_results_arrive(name, mode):
    observed = searched(name, mode, 45 if name == "ray:hyperopt" else 25)
    for values in (observation.values for observation in observed):
        assert list(values) == [dimension.name for dimension in SPACES[name]]
        for dimension in SPACES[name]:
            value = values[dimension.name]
            if isinstance(dimension, Choices):
                assert repr(value) in map(repr, dimension.values)
            else:
                assert type(value) is type(dimension.low)
                assert value == dimension.rounded(value)  # in the range, with six digits
    errors = [abs(observation.values["x"] - 0.3) for observation in observed]
    assert sum(errors[-10:]) < sum(errors[:10])
    assert len({observation.values["lr"] for observation in observed}) > len(observed) // 2


@pytest.mark.slow
def test_a_searcher_that_is_created_again_continues_as_the_uninterrupted_one(name):
    whole = searched(name, "min", 23)
    for number in (1, 11, 22):
        assert search_for(name).propose(number, whole[:number], "min") == whole[number].values
        assert search_for(name, seed=1).propose(number, whole[:number], "min") != whole[number].values


@pytest.mark.slow
def test_runs_at_the_same_time_get_different_values_that_depend_only_on_what_is_known(name):
    observed = searched(name, "min", 12)
    running = []
    for number in range(12, 15):
        values = search_for(name).propose(number, [*observed, *running], "min")
        assert search_for(name).propose(number, [*observed, *running], "min") == values
        running.append(Observation(values, is_running=True))
    assert len({observation.values["x"] for observation in running}) == 3


@pytest.mark.slow
def test_a_failed_run_is_told_as_failed_and_the_search_goes_on(name):
    search, observed = search_for(name), []
    for number in range(32):
        values = search.propose(number, observed, "min")
        observed.append(observe(values) if number % 5 else Observation(values))
    best = sorted(one.result for one in observed if one.result is not None)[:4]
    with_failures = [Observation(one.values) if one.result in best else one for one in observed]
    assert search.propose(32, with_failures, "min") != search.propose(32, observed, "min")


def test_two_runs_with_the_same_values_do_not_stop_the_search(name):
    observed = [observe({d.name: d.points()[0] if isinstance(d, Choices) else d.low for d in SPACES[name]})]
    assert search_for(name).propose(12, observed * 12, "min")


@pytest.mark.slow
def test_ray_is_not_started(name):
    program = f"""
import psutil, ray
from flodl.cli.sweep.search import make_search
from flodl.cli.sweep.space import Range
search = make_search({name!r}, [Range("x", 0.0, 1.0)], num_runs=3, seed=0)
search.propose(0, [], "min")
assert not ray.is_initialized()
assert not psutil.Process().children(recursive=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("dimension", [Choices("hidden", (8, 16)), Range("hidden", 8, 16)])
def test_bayesopt_takes_only_ranges_of_floats(dimension):
    with pytest.raises(SetupError, match=r"but hidden has .*Use ray:hyperopt or ray:optuna"):
        make_search("ray:bayesopt", [dimension], num_runs=3, seed=0)


@pytest.mark.parametrize(
    ("missing", "search", "package"),
    [
        ("ray", "ray:hyperopt", "hyperopt"),
        ("ray", "ray:optuna", "optuna"),
        ("bayes_opt", "ray:bayesopt", "bayesian-optimization==1.4.3"),
    ],
)
def test_without_a_package_the_error_has_the_command_that_installs_it(monkeypatch, missing, search, package):
    for module in (missing, f"{missing}.tune"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SetupError) as error:
        make_search(search, FLOATS, num_runs=3, seed=0)
    assert f'pip install "flodl[ray]" "{package}"' in str(error.value)


def test_a_version_that_ray_tune_does_not_work_with_is_named(monkeypatch):
    installed("ray:bayesopt")
    monkeypatch.setattr("flodl.cli.sweep.ray_search.version", lambda _name: "3.4.0")
    with pytest.raises(SetupError, match=r"Ray Tune does not work with 3\.4\.0"):
        make_search("ray:bayesopt", FLOATS, num_runs=3, seed=0)


def test_the_manifest_takes_the_same_searches_as_the_command_line():
    literal, _none = get_args(get_type_hints(Sweep)["search"])
    assert get_args(literal) == SEARCHES


def test_a_misspelled_search_is_an_error_with_a_suggestion(project, capfd):
    manifest = "entry: python train.py\nsweep:\n  search: %s\n  over: {lr: [1, 2]}\ncommands: {run: {}}\n"
    project({"fdl.yml": manifest % "grid", "train.py": ""})
    assert main(["sweep", "--search", "ray:hyperop"]) == 2
    assert "Did you mean 'ray:hyperopt'" in capfd.readouterr().err
    project({"fdl.yml": manifest % "ray:hyperop", "train.py": ""})
    assert main(["sweep"]) == 1
    assert "fdl.yml:3: sweep.search: 'ray:hyperop' is not allowed here." in (told := capfd.readouterr().err)
    assert "Did you mean 'ray:hyperopt'" in told


def test_the_help_imports_neither_ray_nor_torch():
    program = (
        "import sys; from flodl.cli import main; main(['sweep', '--help']);"
        "assert not {'ray', 'torch', 'optuna'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(search in done.stdout.replace("\n", "") for search in RAY_SEARCHES)
