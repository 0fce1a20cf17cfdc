"""`fdl launch`: what it would start, and its errors. Real launches are in tests/distributed/placement."""

import json

import pytest

from flodl.cli import main
from flodl.cli.execution.launched_script import check_options_after
from flodl.cli.machine import torch_facts
from flodl.distributed.placement import Placement


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    return "train.py"


def test_explain_shows_each_rank_and_starts_nothing(script, capfd):
    assert main(["launch", "--devices", "cuda:0, cpu", "--explain", script, "--lr", "0.1"]) == 0
    out = capfd.readouterr().out
    assert out.splitlines()[:3] == [
        "supervisor: this host, runs train.py",
        "rank 0: this host, cuda:0",
        "rank 1: this host, cpu",
    ]
    assert "train.py --lr 0.1" in out
    assert "trained" not in out


def test_json_has_the_command_and_the_environment(script, capfd):
    assert main(["launch", "--on", "torchrun", "--ranks", "2", "--json", script]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["on"] == "torchrun"
    assert found["command"][1:3] == ["-m", "torch.distributed.run"]
    told = Placement.from_json(found["environment"]["FLODL_LAUNCH"])
    assert told == Placement(on="torchrun", ranks=(2, 2))


def test_a_script_learns_where_its_ranks_run_and_its_exit_code_is_returned(script, tmp_path, capfd):
    (tmp_path / script).write_text(
        "import os, sys; print(os.environ['FLODL_LAUNCH'], sys.argv[1:]); sys.exit(3)  # --json"
    )
    assert main(["launch", "--devices", "cpu,cpu", script, "--json", "-v"]) == 3
    assert capfd.readouterr().out == '{"on": "local", "devices": ["cpu", "cpu"]} [\'--json\', \'-v\']\n'


OWN_LOOP = """
import torch
from flodl import Trainer, TrainStep
model = torch.nn.Linear(4, 1)
loss_of = lambda model, x: model(x).square().mean()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize(
    ("code", "is_used"),
    [
        ("TrainStep(model, optimizer, loss_of)(torch.randn(8, 4))", False),
        pytest.param(
            "Trainer(model, loss_of, optimizer=optimizer, monitor=False)", True, marks=pytest.mark.slow
        ),
        pytest.param(
            "Trainer(model, loss_of, optimizer=optimizer, monitor=False, device='cpu')",
            True,
            marks=pytest.mark.slow,
        ),
        ("raise SystemExit(3)", True),  # the error is enough
    ],
)
def test_a_script_whose_ranks_no_trainer_used_is_reported(script, tmp_path, capfd, code, is_used):
    (tmp_path / script).write_text(OWN_LOOP + code)
    main(["launch", "--ranks", "2", script])
    message = f"no Trainer in {script} used the 2 ranks: the script ran once, in one process."
    assert (message not in capfd.readouterr().err) == is_used


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--devices", "gpu:0"], "the device 'gpu:0' is unknown. Write cpu, cuda or cuda:0."),
        (["--devices", " , "], "--devices is empty"),
        (["--devices", "2"], "for a number of ranks, use --ranks 2."),
        (["--on", "ray", "--devices", "cuda:1"], "Ray chooses the GPU: write cuda"),
        ([], "neither --devices nor --ranks is given"),
        (["--devices", "cpu", "--ranks", "1"], "are mutually exclusive"),
        (["--ranks", "many"], "'many' is not a number of ranks"),
        (["--on", "torchrun", "--ranks", "1", "--hosts", "2"], "several hosts need an address"),
    ],
)
def test_errors_say_what_to_pass(script, words, message, capfd):
    assert main(["launch", *words, script]) == 1
    assert message in capfd.readouterr().err


@pytest.mark.parametrize("words", [["--devices", "cpu,cpu"], ["--ranks=2"]])
def test_an_option_after_the_script_says_that_it_comes_before(script, words, capfd):
    assert main(["launch", script, *words]) == 1
    name = words[0].partition("=")[0]
    told = f"{name} is after {script}, so it is passed to the script. Options of fdl launch come before the"
    assert told in capfd.readouterr().err


@pytest.mark.parametrize("option", ["--explain", "--json", "--dry-run"])
def test_an_option_after_the_script_that_starts_nothing_raises(script, option, capfd):
    assert main(["launch", "--ranks", "2", script, option]) == 1
    shown = capfd.readouterr()
    assert f"{option} is after {script}, so it is passed to the script, which does not have it." in shown.err
    assert "trained" not in shown.out


@pytest.mark.parametrize(
    ("code", "module"),
    [
        ("parser.add_argument('--dry-run')", ""),
        ("@dataclass\nclass Settings:\n    dry_run: bool = False", ""),
        ("from options import parse", "def parse(dry_run=False): ..."),
        ("import typer", ""),
    ],
)
def test_a_script_receives_its_own_options(script, tmp_path, code, module):
    (tmp_path / "train.py").write_text(code)
    (tmp_path / "options.py").write_text(module)
    check_options_after(tmp_path / "train.py", ["--dry-run"])


def test_a_script_that_does_not_exist_is_an_error(tmp_path, capfd):
    assert main(["launch", "--ranks", "2", str(tmp_path / "none.py")]) == 1
    assert "not found. Pass the path of a Python file" in capfd.readouterr().err


def test_without_ray_the_error_names_the_extra(script, monkeypatch, capfd):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    assert main(["launch", "--on", "ray", "--ranks", "2", "--explain", script]) == 1
    assert "pip install 'flodl[ray]'" in capfd.readouterr().err


def test_an_engine_that_does_not_exist_is_a_usage_error(script, capfd):
    assert main(["launch", "--on", "slurm", "--ranks", "2", script]) == 2
    assert "'slurm' is not one of 'local', 'ray', 'torchrun'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("devices", "facts", "message"),
    [
        (
            "cpu,cuda:0",
            {"version": "2.9", "cuda": None, "hip": None, "gpus": []},
            "--devices cpu,cuda:0: torch 2.9 is built without CUDA. Write --devices cpu,cpu, or --ranks 2.",
        ),
        (
            "cuda",
            {"version": "2.9", "cuda": "13.0", "hip": None, "gpus": []},
            "--devices cuda: torch 2.9 finds no CUDA device. Write --devices cpu, or --ranks 1.",
        ),
        (
            "cuda:0,cuda:2",
            {"version": "2.9", "cuda": "13.0", "hip": None, "gpus": [{}, {}]},
            "--devices cuda:0,cuda:2: the CUDA devices of this machine are 0 to 1.",
        ),
    ],
)
def test_a_cuda_device_that_this_machine_lacks_is_an_error_before_anything_starts(
    script, devices, facts, message, monkeypatch, capfd
):
    monkeypatch.setattr(torch_facts, "query_torch", lambda python: facts)
    assert main(["launch", "--devices", devices, script]) == 1
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", f"error: {message}\n")


def test_existing_cuda_devices_start_and_torch_is_not_asked_for_cpus(script, monkeypatch, capfd):
    asked = []
    facts = {"version": "2.9", "cuda": "13.0", "hip": None, "gpus": [{}]}
    monkeypatch.setattr(torch_facts, "query_torch", lambda python: asked.append(python) or facts)
    assert main(["launch", "--devices", "cpu,cpu", script]) == 0
    assert asked == []
    assert main(["launch", "--devices", "cuda,cuda:0", script]) == 0
    assert len(asked) == 1
    assert capfd.readouterr().out == "trained\ntrained\n"
