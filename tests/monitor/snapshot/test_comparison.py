"""Several runs next to each other: which settings differ, and which of them a table shows."""

import json

from flodl.monitor import Event, Journal
from flodl.monitor.exports import comparison_json
from flodl.monitor.snapshot import Focus, compare, snapshot, summary


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


def test_the_number_of_epochs_is_listed_as_a_setting_if_it_differs():
    facts = [{"total epochs": epochs} for epochs in (3, 4)]
    trained = [run("a", facts=facts[0], epochs=3), run("b", facts=facts[1], epochs=4)]
    known, unknown = [run("a", facts=facts[0]), run("b", facts=facts[1])], run("c")
    for runs in (trained, known, [trained[0], known[1]], [*known, unknown]):
        found = compare(runs)
        assert found["differing"] == found["columns"] == ["epochs"]
        assert [each["settings"] for each in found["runs"][:2]] == [{"epochs": 3}, {"epochs": 4}]
    assert compare([trained[0], known[0]])["differing"] == []
    assert compare([known[0], unknown])["differing"] == []


def test_the_number_of_epochs_of_the_last_start_counts(tmp_path):
    def write(name, *starts):
        for total, epochs in starts:
            write_starts(tmp_path / name, ({}, epochs), total_epochs=total)
        return tmp_path / name

    extended = write("extended", (2, [0, 1]), (4, [2, 3]))
    whole, shorter = write("whole", (4, range(4))), write("shorter", (2, [0, 1]))
    for runs, differing in (([extended, whole], []), ([extended, whole, shorter], ["epochs"])):
        assert compare([summary(one) for one in runs])["differing"] == differing
        exported = json.loads(comparison_json(runs))
        assert exported["differing"] == differing
        shown = [one["settings"].get("epochs") for one in exported["runs"]]
        assert shown == ([4, 4, 2] if differing else [None, None])


def test_a_setting_with_the_name_of_the_number_of_epochs_is_compared():
    runs = [run(name, facts={"total epochs": 9}, epochs=epochs) for name, epochs in (("a", 3), ("b", 4))]
    assert compare(runs)["differing"] == ["epochs"]


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


def write_starts(folder, *starts, total_epochs=9):
    """Write a journal; each start has its settings and the epochs that it trains."""
    with Journal.open(folder) as journal:
        for number, (settings, epochs) in enumerate(starts):
            config = [{"path": path, "value": value, "origin": ""} for path, value in settings.items()]
            facts = {"name": folder.name, "total_epochs": total_epochs, "config": config}
            journal.write(Event("run_start", facts, time_s=100.0 * number))
            for epoch in epochs:
                journal.write(
                    Event("epoch", {"epoch": epoch, "metrics": {"loss": 1.0}}, time_s=100.0 * number)
                )
            ended = {"status": "finished", "duration_s": 1.0}
            journal.write(Event("run_end", ended, time_s=100.0 * number + 1))
    return folder


def test_a_setting_that_a_later_start_changed_is_listed_with_its_epoch(tmp_path):
    starts = [({"lr": 2e-3, "epochs": 4}, range(4)), ({"lr": 1e-3, "epochs": 8}, range(4, 8))]
    found = summary(write_starts(tmp_path, *starts))
    assert found["changed"] == {"lr": [{"epoch": 4, "was": 2e-3, "now": 1e-3}]}


def test_a_setting_that_only_one_start_has_is_listed_and_makes_runs_differ(tmp_path):
    added = write_starts(tmp_path / "a", ({"lr": 0.2}, [0, 1]), ({"lr": 0.2, "mix": 1}, [2, 3]))
    whole = write_starts(tmp_path / "b", ({"lr": 0.2, "mix": 1}, [0, 1, 2, 3]))
    removed = write_starts(tmp_path / "c", ({"lr": 0.2, "mix": 1}, [0, 1]), ({"lr": 0.2}, [2, 3]))
    without = write_starts(tmp_path / "d", ({"lr": 0.2}, [0, 1, 2, 3]))
    assert summary(added)["changed"] == {"mix": [{"epoch": 2, "now": 1}]}
    assert summary(removed)["changed"] == {"mix": [{"epoch": 2, "was": 1}]}
    for runs in ((added, whole), (removed, without)):
        assert compare([summary(run) for run in runs])["differing"] == ["mix"]


def test_a_setting_that_is_none_is_not_a_missing_one(tmp_path):
    cleared = write_starts(tmp_path / "a", ({"mix": 1}, [0, 1]), ({"mix": None}, [2, 3]))
    assert summary(cleared)["changed"] == {"mix": [{"epoch": 2, "was": 1, "now": None}]}


def test_a_setting_that_only_one_version_of_flodl_records_is_left_out(tmp_path):
    later = {"versions.flodl": "0.2", "lr": 0.1, "new": 1}
    starts = ({"versions.flodl": "0.1", "lr": 0.2}, [0, 1]), (later, [2, 3])
    assert "new" not in summary(write_starts(tmp_path, *starts))["changed"]


def test_a_start_that_trains_everything_again_or_nothing_has_changed_no_setting(tmp_path):
    again = write_starts(tmp_path / "again", ({"lr": 0.2}, range(4)), ({"lr": 0.1}, range(4)))
    assert summary(again)["changed"] == {}
    idle = write_starts(tmp_path / "idle", ({"lr": 0.1}, [0]), ({"lr": 9}, []), ({"lr": 0.1}, [1]))
    assert summary(idle)["changed"] == {}
    older = ({"lr": 0.3}, range(4)), ({"lr": 0.2}, [4, 5]), ({"lr": 0.1}, [2, 3, 4])
    back = summary(write_starts(tmp_path / "back", *older))
    assert back["changed"] == {"lr": [{"epoch": 2, "was": 0.3, "now": 0.1}]}


def test_a_run_with_a_setting_that_changed_differs_from_one_that_always_had_its_last_value(tmp_path):
    changed = write_starts(tmp_path / "a", ({"lr": 2e-3}, [0, 1]), ({"lr": 1e-3}, [2, 3]))
    whole = write_starts(tmp_path / "b", ({"lr": 1e-3}, [0, 1]), ({"lr": 1e-3}, [2, 3]))
    found = compare([summary(changed), summary(whole)])
    assert (found["differing"], found["columns"]) == (["lr"], ["lr"])
    assert [run["settings"] for run in found["runs"]] == [{"lr": 1e-3}, {"lr": 1e-3}]
    assert [run["changed"] for run in found["runs"]] == [{"lr": [{"epoch": 2, "was": 2e-3, "now": 1e-3}]}, {}]
    exported = json.loads(comparison_json([changed, whole]))
    assert [run["changed"] for run in exported["runs"]] == [run["changed"] for run in found["runs"]]


def test_a_setting_that_a_resumed_run_ignored_has_its_earlier_value(tmp_path):
    ignored = {"ignored_optimizer_settings.lr": [1e-3], "optimizer_settings.lr": 1e-2}
    first = {"lr": 1e-2, "config.lr": 1e-2, "step.lr": 2e-2, "optimizer_settings.lr": 1e-2}
    later = {"lr": 1e-3, "config.lr": 1e-3, "step.lr": 2e-3, **ignored}
    starts = (first, [0, 1]), (later, [2, 3]), (later, [4, 5]), (first, [6])
    # The step function reads its own setting, which has an effect.
    step = {"epoch": 2, "was": 2e-2, "now": 2e-3}
    resumed = write_starts(tmp_path / "a", *starts[:3])
    assert summary(resumed)["changed"] == {"step.lr": [step]}
    config = {item["path"]: item["value"] for item in summary(resumed)["config"]}
    assert config == {"lr": 1e-2, "config.lr": 1e-2, "step.lr": 2e-3, "optimizer_settings.lr": 1e-2}
    assert snapshot(resumed)["config"] == summary(resumed)["config"]
    back = summary(write_starts(tmp_path / "b", *starts))["changed"]
    assert back == {"step.lr": [step, {"epoch": 6, "was": 2e-3, "now": 2e-2}]}


def test_a_setting_that_the_step_function_reads_has_changed_even_if_the_optimizer_ignores_it(tmp_path):
    ignored = {"ignored_optimizer_settings.lr": [1e-3], "optimizer_settings.lr": 1e-2}
    first = {"lr": 1e-2, "config.lr": 1e-2, "step.c.lr": 1e-2, "optimizer_settings.lr": 1e-2}
    later = {"lr": 1e-3, "config.lr": 1e-3, "step.c.lr": 1e-3, **ignored}
    found = summary(write_starts(tmp_path, (first, [0]), (later, [1]), (later, [2])))
    assert sorted(found["changed"]) == ["config.lr", "lr", "step.c.lr"]
    assert found["ignored"] == {}


def test_an_ignored_setting_that_is_no_option_of_the_program_is_listed(tmp_path):
    settings = {"optimizer_settings.lr": 1e-2}
    one = {**settings, "ignored_optimizer_settings.lr": [1e-3]}
    found = summary(write_starts(tmp_path / "a", (settings, [0]), (one, [1])))
    assert found["changed"] == {}
    assert found["ignored"] == {"optimizer_settings.lr": [{"epoch": 1, "value": 1e-3}]}
    groups = {**settings, "ignored_optimizer_settings.lr": [1e-3, 1e-4]}
    found = summary(write_starts(tmp_path / "b", (settings, [0]), (groups, [1])))
    assert found["ignored"] == {"optimizer_settings.lr": [{"epoch": 1, "value": [1e-3, 1e-4]}]}


def test_only_the_value_that_was_ignored_is_replaced(tmp_path):
    ignored = {"ignored_optimizer_settings.lr": [1e-3], "ignored_optimizer_settings.betas": [[0.8, 0.9]]}
    starts = (
        ({"head.lr": 1e-2, "lr": 1e-2, "betas": [0.9, 0.99]}, [0]),
        ({"head.lr": 5e-3, "lr": 1e-3, "betas": [0.8, 0.9], **ignored}, [1]),
    )
    found = summary(write_starts(tmp_path, *starts))
    assert found["changed"] == {"head.lr": [{"epoch": 1, "was": 1e-2, "now": 5e-3}]}
    config = {item["path"]: item["value"] for item in found["config"]}
    assert config == {"head.lr": 5e-3, "lr": 1e-2, "betas": [0.9, 0.99]}


def test_a_run_that_starts_from_another_one_has_the_settings_that_it_trained_with(tmp_path):
    settings = {"lr": 1e-3, "ignored_optimizer_settings.lr": [1e-3], "optimizer_settings.lr": 1e-2}
    found = summary(write_starts(tmp_path, (settings, [0])))
    assert {item["path"]: item["value"] for item in found["config"]}["lr"] == 1e-2
