"""A script with a Trainer that names no devices: the same on one device and on every engine."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.slow

# Without a guard, with lambdas, and with code after `fit`, which runs once.
SCRIPT = """
import json, os, pathlib, sys
import torch
from flodl import Trainer

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
x = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
y = x.sum(1, keepdim=True)
trainer = Trainer(
    model,
    lambda model, x, y: (model(x) - y).square().mean(),
    optimizer=lambda groups: torch.optim.SGD(groups, lr=0.05),
    monitor=False,
    seed=0,
    checkpoint_dir=sys.argv[1],
)
result = trainer.fit((x, y), epochs=3, batch_size=4, eval_data=(x[:32], y[:32]))
if "FLODL_RANK" in os.environ:
    raise SystemExit("a rank must not get here")
found = {
    "epochs": [row["epoch"] for row in result.history],
    "columns": sorted(result.history[-1]),
    "losses": [row["eval_loss"] for row in result.history],
    "steps": result.steps,
    "ranks": None if result.ranks is None else [result.ranks.samples, len(result.ranks.ranks)],
}
print(json.dumps(found))
"""
# The same, so slow that it can be killed.
SLOW = (
    SCRIPT.replace(
        "x.sum(1, keepdim=True)",
        """x.sum(1, keepdim=True)
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return len(x)
    def __getitem__(self, index):
        import time
        time.sleep(0.01)
        return x[index], y[index]
""",
    )
    .replace("fit((x, y), ", "fit(Slow(), ")
    .replace("seed=0,", "seed=0, save_every_steps=4,")
)
LAUNCH = [sys.executable, "-m", "flodl", "launch"]


@pytest.fixture
def run(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def start(command, *, prefix=()):
        done = subprocess.run(
            [*prefix, *command, str(script), str(tmp_path / "run")],
            capture_output=True, text=True, timeout=280, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"epochs"')]
        assert len(lines) == 1, done.stdout
        return json.loads(lines[0])

    return start


def check(found, *, num_ranks):
    assert found["epochs"] == [1, 2, 3]
    assert found["steps"] == 72
    assert found["losses"] == sorted(found["losses"], reverse=True)
    assert found["ranks"] == [3 * 96, num_ranks]


def test_one_device_and_two_local_ranks_run_the_same_script(run, tmp_path):
    plain = run([sys.executable])
    assert plain["ranks"] is None
    os.rename(tmp_path / "run", tmp_path / "plain")
    found = run([*LAUNCH, "--devices", "cpu,cpu"])
    check(found, num_ranks=2)
    assert found["columns"] == plain["columns"]


@pytest.mark.parametrize("how", ["torchrun", "fdl"])
def test_torchrun_runs_the_same_script(run, how):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    check(run(torchrun if how == "torchrun" else [*LAUNCH, "--on", "torchrun", "--ranks", "2"]), num_ranks=2)


def test_ray_runs_the_same_script(run, ray_cluster):
    check(run([*LAUNCH, "--on", "ray", "--ranks", "2", "--address", ray_cluster]), num_ranks=2)


def test_after_a_kill_torchrun_starts_again_and_fit_resumes(tmp_path):
    (tmp_path / "train.py").write_text(SLOW)
    words = [*LAUNCH, "--on", "torchrun", "--ranks", "2", "train.py", "run"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=tmp_path, **pipes) as process:
        while not list(tmp_path.glob("run/**/manifest.json")):
            assert process.poll() is None
            time.sleep(0.1)
        ranks = [each for each in psutil.Process(process.pid).children(recursive=True) if is_rank(each)]
        assert len(ranks) == 2
        ranks[1].kill()
        out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err[-3000:]
    assert "torchrun has started all ranks again" in err
    found = json.loads(next(line for line in out.splitlines() if line.startswith('{"epochs"')))
    assert found["epochs"] == [1, 2, 3]
    assert found["steps"] == 72


def is_rank(process):
    words = process.cmdline()
    return "flodl.distributed.placement.torchrun_rank" in words and "torch.distributed.run" not in words
