import json
import subprocess
import sys

import pytest

from flodl.cli import main
from flodl.cli.commands import bench
from flodl.cli.commands.bench import _table
from flodl.core.errors import SetupError
from flodl.engine.benchmark import Timing

WORK = """
    import torch
    from neighbour import mse

    def work():
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, mse, (torch.ones(8, 4), torch.zeros(8, 2))

    def broken():
        return 3

    def misfit():
        model, optimizer, step_fn, (x, y) = work()
        return model, optimizer, step_fn, (x[:, :3], y)

    def infinite():
        return *work()[:2], lambda model, x, y: mse(model, x, y) * torch.inf, work()[3]

    def silent():
        def step_fn(model, x, y):
            raise ValueError("first line\\nsecond line")

        return *work()[:2], step_fn, work()[3]
"""
NEIGHBOUR = """
    def mse(model, x, y):
        return (model(x) - y).square().mean()
"""
QUICK = ["--steps", "2", "--rounds", "2", "--tiers", "torch,eager"]


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("bench_work", "neighbour"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("bench_work", "neighbour"):
        sys.modules.pop(name, None)


@pytest.fixture
def work(project):
    return project({"bench_work.py": WORK, "neighbour.py": NEIGHBOUR})


@pytest.mark.slow
def test_without_a_target_the_built_in_model_is_measured(capsys):
    assert main(["bench", "--device", "cpu", *QUICK]) == 0
    shown = capsys.readouterr()
    header, first, second, blank, *reasons = shown.out.splitlines()
    assert header.split() == ["ms/step", "jitter", "vs", "torch", "setup"]
    assert (first.split()[0], second.split()[0], blank) == ("torch", "eager", "")
    assert first.split()[3] == "1.00×"
    assert reasons[:2] == ["torch: a plain torch loop", "eager: tier='eager' was requested"]
    assert "round 2 of 2" in shown.err


@pytest.mark.parametrize("target", ["bench_work.py:work", "./bench_work.py:work", "bench_work:work"])
def test_a_user_function_is_measured(capsys, work, target):
    assert main(["bench", target, *QUICK]) == 0
    assert "eager: tier='eager' was requested" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tiers", "torch,foo"], "--tiers: there is no tier 'foo'"),
        (["--json", "nowhere/x.json"], "does not exist. Create it"),
    ],
)
def test_mistakes_that_would_fail_at_the_end_are_found_before_measuring(
    capsys, work, monkeypatch, words, message
):
    monkeypatch.setattr("flodl.engine.benchmark.compare", None)
    assert main(["bench", "bench_work:work", *words]) == 1
    assert message in capsys.readouterr().err
    assert not (work / "nowhere").exists()


def test_skipped_updates_are_reported(capsys, work):
    assert main(["bench", "bench_work:infinite", *QUICK]) == 0
    assert "The loss was not finite, so eager skipped updates that torch applied" in capsys.readouterr().out


def test_numbers_are_written_as_json(capsys, work):
    (work / "out").mkdir()
    assert main(["bench", "bench_work:work", *QUICK, "--json", "out/numbers.json"]) == 0
    written = json.loads((work / "out/numbers.json").read_text())
    assert (written["target"], written["steps"], written["rounds"]) == ("bench_work:work", 2, 2)
    assert [timing["rival"] for timing in written["timings"]] == ["torch", "eager"]
    assert all(len(timing["samples_s"]) == 2 for timing in written["timings"])
    assert {"flodl", "torch", "python", "platform", "gpu", "threads"} <= written.keys()
    assert "written to out/numbers.json" in capsys.readouterr().err


def test_a_busy_machine_is_reported():
    calm = Timing("eager", "eager", "asked for", 0.0, (1.0, 1.0, 1.0))
    busy = Timing("captured", "eager", "no device", 0.0, (1.0, 2.0, 4.0))
    assert "busy" not in _table([calm])
    assert _table([calm, busy]).splitlines()[-3:] == [
        "captured: ran as eager: no device",
        "",
        "The machine was busy: differences smaller than the jitter are noise.",
    ]


def test_quiet_prints_only_the_table(capsys, work):
    assert main(["bench", "bench_work:work", *QUICK, "-q"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench_work"], "'bench_work' is not a target. Write package.module:function or file.py:function."),
        (["bench_work:wrok"], "bench_work has no function 'wrok'. Did you mean 'work'"),
        (["nothing.py:work"], "there is no file nothing.py. Use a path relative to "),
        (["no_such_module:work"], "the module 'no_such_module' was not found from "),
        (["bench_work:broken"], "the function returns an int. Return (model, optimizer, step_fn, batch)."),
        (["bench_work:work", "--tiers", "eagre"], "there is no tier 'eagre'. Did you mean 'eager'?"),
        (["bench_work:work", "--tiers", ","], "--tiers is empty."),
    ],
)
def test_invalid_targets_and_tiers_are_explained(capsys, work, arguments, message):
    assert main(["bench", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_failing_import_inside_the_target_is_not_reported_as_a_missing_target(project, capsys):
    project({"bench_work.py": "import no_such_thing_at_all\n"})
    for target in ("bench_work:work", "bench_work.py:work"):
        assert main(["bench", target]) == 1
        assert "No module named 'no_such_thing_at_all'. -vv shows the traceback." in capsys.readouterr().err


def test_the_message_of_a_failing_import_ends_with_one_period(project, capsys):
    project({"bench_work.py": "raise ValueError('there are no devices.')\n"})
    for target in ("bench_work:work", "bench_work.py:work"):
        assert main(["bench", target]) == 1
        assert "ValueError: there are no devices. -vv shows the traceback." in capsys.readouterr().err


def test_a_target_that_raises_is_named(project, capsys):
    project({"bench_work.py": "def work():\n    raise ValueError('not today')\n"})
    assert main(["bench", "bench_work.py:work"]) == 1
    assert "bench_work.py:work raised ValueError: not today." in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], QUICK, ["--steps", "1", "--tiers", "eager"]])
def test_a_batch_that_does_not_fit_the_model_is_reported_in_one_line(work, capsys, more):
    assert main(["bench", "bench_work.py:misfit", "-q", *more]) == 1
    shown = capsys.readouterr().err
    kind = "StepFunctionError" if "eager" in more else "RuntimeError"
    assert f"bench_work.py:misfit raised {kind}: mat1 and mat2 shapes cannot be multiplied" in shown
    assert shown.endswith("that fit together; -vv shows the traceback.\n")
    assert "Traceback" not in shown


def test_only_the_first_line_of_an_error_is_shown_without_vv(work, capsys):
    assert main(["bench", "bench_work.py:silent", "-q", *QUICK]) == 1
    assert "raised ValueError: first line. It must return" in capsys.readouterr().err
    assert main(["bench", "bench_work.py:silent", "-vv", *QUICK]) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "second line" in shown


@pytest.mark.parametrize(
    ("device", "message"), [("foo", "is not a device. Use cpu, cuda"), ("cuda:99", "--device cuda:99")]
)
def test_a_missing_device_is_an_error(capsys, device, message):
    assert main(["bench", "--device", device]) == 1
    assert message in capsys.readouterr().err


def test_the_default_number_of_steps_fits_the_time_limit(work, capsys, monkeypatch):
    monkeypatch.setattr(bench, "MEASURE_S", 0.0)
    assert main(["bench", "bench_work.py:work", "--device", "cpu", "--rounds", "1", "--tiers", "torch"]) == 0
    assert "ms: 1 per round, about 0 s" in capsys.readouterr().err


def test_the_help_needs_no_torch():
    code = (
        "import sys; from flodl.cli.commands.bench import command; "
        "command.main(['--help'], standalone_mode=False); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "file.py:function" in done.stdout


def test_a_script_that_parses_arguments_does_not_get_those_of_bench(project, monkeypatch):
    script = """
        import argparse, sys
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", type=float, default=0.1)
        args = parser.parse_args()
        program = sys.argv
    """
    project({"bench_work.py": script})
    monkeypatch.setattr(sys, "argv", ["fdl", "bench", "bench_work.py:nothing"])
    with pytest.raises(SetupError, match=r"bench_work\.py has no function 'nothing'"):
        bench._load_target("bench_work.py:nothing")
    assert sys.modules["bench_work"].program == ["bench_work.py"]
    assert sys.argv == ["fdl", "bench", "bench_work.py:nothing"]
