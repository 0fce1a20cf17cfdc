"""Several runs next to each other: which settings differ, and which of them a table shows."""

from flodl.monitor.snapshot import Focus, compare


def run(folder, *, facts=None, set_by_user=(), metrics=(), **settings):
    config = [
        {"path": path, "value": value, "origin": "--" + path if path in set_by_user else ""}
        for path, value in settings.items()
    ]
    return {
        "folder": folder,
        "facts": facts or {},
        "metrics": {name: {} for name in metrics},
        "config": config,
    }


def test_only_settings_that_differ_are_listed():
    found = compare([run("a", lr=0.1, seed=0), run("b", lr=0.2, seed=0), run("c", lr=0.2)])
    assert found["differing"] == ["lr", "seed"]
    assert [each["settings"] for each in found["runs"]] == [
        {"lr": 0.1, "seed": 0},
        {"lr": 0.2, "seed": 0},
        {"lr": 0.2},
    ]
    assert found["num_settings"] == 2


def test_the_number_of_epochs_is_listed_once_as_a_setting_or_else_as_a_fact():
    facts = [{"total epochs": epochs} for epochs in (3, 4)]
    trained = [run("a", facts=facts[0], epochs=3), run("b", facts=facts[1], epochs=4)]
    assert compare(trained)["differing"] == ["epochs"]
    assert compare([run("a", facts=facts[0]), run("b", facts=facts[1])])["differing"] == ["(total epochs)"]
    assert compare([trained[0], run("b", facts=facts[1])])["differing"] == ["epochs", "(total epochs)"]


def test_a_number_and_its_text_differ_but_one_and_one_point_zero_do_not():
    assert compare([run("a", x=1), run("b", x="1")])["differing"] == ["x"]
    assert compare([run("a", x=[1]), run("b", x=[1.0])])["differing"] == []
    assert compare([run("a", x=1), run("b", x=1.0)])["differing"] == []
    assert compare([run("a", x=1), run("b", x=True)])["differing"] == ["x"]
    assert compare([run("a", x=[1]), run("b", x=[True])])["differing"] == ["x"]
    assert compare([run("a", x=None), run("b")])["differing"] == ["x"]


def test_settings_that_follow_from_those_that_were_set_are_no_columns():
    runs = [
        run(
            "001",
            set_by_user={"lr", "hidden", "output"},
            lr=0.1,
            hidden=16,
            output="runs/001",
            parameters=160,
        ),
        run(
            "002",
            set_by_user={"lr", "hidden", "output"},
            lr=0.2,
            hidden=32,
            output="runs/002",
            parameters=320,
        ),
    ]
    assert compare(runs)["columns"] == ["lr", "hidden"]


def test_a_setting_that_nothing_explains_is_a_column():
    runs = [
        run(name, set_by_user={"lr"}, lr=lr, code=code)
        for name, lr, code in (("a", 1, "x"), ("b", 1, "y"), ("c", 2, "y"))
    ]
    assert compare(runs)["columns"] == ["lr", "code"]
    hosts = [run(name, facts={"hardware": host}) for name, host in (("a", "cpu"), ("b", "gpu"))]
    assert compare(hosts)["columns"] == ["(hardware)"]


def test_independent_settings_of_random_runs_are_all_columns():
    runs = [run(str(at), lr=0.1 * at, dropout=0.5 / (at + 1)) for at in range(4)]
    assert compare(runs)["columns"] == ["lr", "dropout"]


def test_the_settings_of_a_sweep_come_first_and_its_metric_is_shown():
    runs = [run(str(at), metrics=["loss", "eval_f1"], depth=at, lr=at) for at in range(2)]
    found = compare(runs, Focus(metric="loss", settings=("lr",)))
    assert (found["columns"][0], found["metric"]) == ("lr", "loss")
    assert compare(runs)["metric"] == "eval_f1"
    assert compare(runs, Focus(metric="unknown"))["metric"] == "eval_f1"


def test_a_metric_that_all_runs_have_is_preferred():
    assert compare([run("a", metrics=["eval_f1", "loss"]), run("b", metrics=["loss"])])["metric"] == "loss"


def test_no_runs_can_be_compared():
    assert compare([]) == {
        "runs": [],
        "differing": [],
        "columns": [],
        "num_settings": 0,
        "metrics": [],
        "metric": None,
    }
