"""Compiling in a worker process: what is sent, what is found afterwards, and how the process ends."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from flodl.engine import TrainStep
from flodl.engine.batch.samples import num_samples
from flodl.engine.batch.signature import signature
from flodl.engine.compile import background, payload, policy
from flodl.engine.compile.background import BackgroundCompilation
from flodl.engine.compile.payload import pack_step
from flodl.engine.optimizer.prepare import prepare
from flodl.engine.program.program import StepBody
from flodl.engine.program.runner import Micro, Phase
from flodl.engine.settings import StepSettings

unix = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def body_and_micro(step_fn=mse, **settings):
    model = nn.Linear(256, 256)
    batch = (torch.ones(8, 256), torch.zeros(8, 256))
    return body_for(model, step_fn, **settings), Micro(
        batch, signature(batch), Phase.ONLY, num_samples(batch)
    )


def body_for(model: nn.Module, step_fn=mse, **settings) -> StepBody:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return StepBody.create(model, optimizer, step_fn, StepSettings(**settings), prepare(optimizer))


def slow(model, x, y):
    time.sleep(600)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(happened, *, limit_s: float = 60.0) -> bool:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if happened():
            return True
        time.sleep(0.05)
    return False


def started(compiling: BackgroundCompilation) -> int:
    """Wait for the worker process, and return its id."""
    assert wait_until(lambda: compiling.process is not None)
    return compiling.process.pid


def test_tensors_are_sent_without_their_values() -> None:
    packed = pack_step(*body_and_micro())
    assert len(packed) < 30_000


def test_what_is_sent_has_the_same_shapes_and_shared_tensors() -> None:
    import cloudpickle

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).half()
    model[1].weight = model[0].weight
    model[1].bias.requires_grad_(False)
    batch = (torch.ones(8, 4).t(), torch.zeros(8))
    parts = cloudpickle.loads(
        pack_step(body_for(model), Micro(batch, signature(batch), Phase.ONLY, num_samples(batch)))
    )
    made = parts["model"]
    assert made[0].weight is made[1].weight is parts["parameters"][0]
    assert isinstance(made[0].weight, nn.Parameter)
    assert (made[0].weight.dtype, made[0].weight.requires_grad) == (torch.float16, True)
    assert not made[1].bias.requires_grad
    assert parts["micro"].batch[0].stride() == batch[0].stride()
    assert not parts["micro"].batch[0].any()


def test_a_model_with_parametrizations_is_sent_whole() -> None:
    import cloudpickle

    model = nn.Sequential(weight_norm(nn.Linear(4, 4)), spectral_norm(nn.Linear(4, 2)))
    batch = (torch.ones(8, 4), torch.zeros(8, 2))
    parts = cloudpickle.loads(
        pack_step(body_for(model), Micro(batch, signature(batch), Phase.ONLY, num_samples(batch)))
    )
    made = parts["model"]
    assert made(batch[0]).shape == (8, 2)
    assert all(a is b for a, b in zip(made.parameters(), parts["parameters"], strict=True))
    assert [name for name, _ in made.named_parameters()] == [name for name, _ in model.named_parameters()]


def test_a_step_function_that_cannot_be_sent_says_so_and_training_goes_on(monkeypatch) -> None:
    monkeypatch.setitem(policy.COMPILE_AFTER_S, "cpu", 0.0)
    lock = threading.Lock()

    def locked(model, x, y):
        with lock:
            return mse(model, x, y)

    model = nn.Linear(4, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), locked)
    for _ in range(10):
        step(torch.ones(8, 4), torch.zeros(8, 2))
    report = step.report()
    assert (report.tier, report.updates, report.compiles) == ("eager", 10, 0)
    assert report.reason == (
        "not compiled: the step cannot be sent to another process (cannot pickle '_thread.lock' object)"
    )


def test_a_step_function_that_holds_a_data_set_is_not_sent(monkeypatch) -> None:
    monkeypatch.setattr(payload, "MAX_PAYLOAD_BYTES", 1 << 20)
    data = bytes(2 << 20)
    compiling = BackgroundCompilation(*body_and_micro(lambda m, x, y: mse(m, x, y) * len(data)))
    assert compiling.done
    assert compiling.failure == (
        "the step cannot be sent to another process (it holds 2 MiB in addition to its tensors)"
    )


@pytest.mark.slow
@unix
def test_a_process_that_is_killed_is_a_failure_and_not_an_error() -> None:
    compiling = BackgroundCompilation(*body_and_micro(slow))
    os.kill(started(compiling), signal.SIGKILL)
    compiling.wait()
    assert compiling.done
    assert compiling.failure == "torch's compiler failed in another process: exit code -9"


@pytest.mark.slow
def test_an_import_that_fails_in_the_worker_is_named_with_its_line(tmp_path: Path, monkeypatch) -> None:
    source = tmp_path / "only_here.py"
    source.write_text(
        "import os\nfrom torch import nn\nPARENT = int(os.environ['ONLY_HERE'])\n"
        "def loss(model, x, y):\n    return nn.functional.mse_loss(model(x), y)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ONLY_HERE", "1")
    import only_here

    monkeypatch.delenv("ONLY_HERE")
    compiling = BackgroundCompilation(*body_and_micro(only_here.loss))
    compiling.wait()
    assert compiling.failure is not None
    assert compiling.failure.startswith(
        "the modules of the step cannot be imported in the worker process that would compile it: KeyError: "
    )
    assert f"{source}:3 (PARENT" in compiling.failure


@pytest.mark.slow
def test_a_module_that_reads_sys_argv_finds_it_in_the_worker_too(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "with_arguments.py").write_text(
        "import sys\nARGUMENTS = sys.argv[1:]\ndef loss(model, x, y):\n    raise ValueError(ARGUMENTS)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "2.5"])
    import with_arguments

    compiling = BackgroundCompilation(*body_and_micro(with_arguments.loss))
    compiling.wait()
    assert "ValueError: ['2.5']" in str(compiling.failure)


@pytest.mark.slow
@unix
def test_closing_ends_the_process() -> None:
    compiling = BackgroundCompilation(*body_and_micro(slow))
    pid = started(compiling)
    compiling.close()
    compiling.wait()
    assert not is_running(pid)


@pytest.mark.slow
@unix
def test_a_process_that_nobody_waits_for_ends() -> None:
    compiling = BackgroundCompilation(*body_and_micro(slow))
    pid = started(compiling)
    # Ctrl-C in a terminal goes to a session of processes; this one is not part of it.
    assert os.getsid(pid) != os.getsid(0)
    del compiling
    gc.collect()
    assert wait_until(lambda: not is_running(pid))


@pytest.mark.slow
@unix
def test_steps_of_one_process_are_compiled_one_after_another() -> None:
    first, second, third = (BackgroundCompilation(*body_and_micro(slow)) for _ in range(3))
    started(first)
    third.close()
    assert wait_until(lambda: third.done)
    assert second.process is None
    assert third.process is None
    first.close()
    started(second)
    second.close()


@pytest.mark.slow
@unix
def test_tuning_over_budget_is_ended_and_compiled_without(monkeypatch) -> None:
    monkeypatch.setattr(
        background, "PROGRAM", "import time; tune = {tune!r}; time.sleep(600 if tune else 0)#{path}"
    )
    compiling = BackgroundCompilation(*body_and_micro(tune="gemm", tune_budget_s=0.5))
    compiling.wait()
    assert compiling.tune is None
    assert compiling.failure is None


CHILD = """
import os, sys, time
print(os.getpid(), flush=True)
if sys.argv[1] == "late":
    time.sleep(1)
from flodl.engine.compile.worker import end_with_parent
end_with_parent(int(sys.argv[2]))
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys
subprocess.run([sys.executable, "-c", *sys.argv[1:], str(os.getpid())])
"""


@pytest.mark.slow
@unix
@pytest.mark.parametrize("when", ["soon", "late"])
def test_the_process_ends_with_the_one_that_started_it(when: str) -> None:
    """Even if the training process cannot clean up, or is gone before the worker first looks."""
    command = [sys.executable, "-c", PARENT, CHILD, when]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not is_running(pid))
    parent.stdout.close()


FOUND = """
import sys
import torch
from torch import nn
from flodl.engine.batch.samples import num_samples
from flodl.engine.batch.signature import signature
from flodl.engine.compile.background import BackgroundCompilation
from flodl.engine.compile.runner import compile_program
from flodl.engine.optimizer.prepare import prepare
from flodl.engine.program.program import StepBody
from flodl.engine.program.runner import EagerRunner, Micro, Phase
from flodl.engine.settings import StepSettings

# Set and restored, which torch distinguishes from never set.
torch.set_float32_matmul_precision("high")
torch.set_float32_matmul_precision("highest")
# Code for a CPU is generated for a number of threads.
torch.set_num_threads(torch.get_num_threads() + 1)
model, batch, layouts = eval(sys.argv[1])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
square = lambda m, x: m(x).square().mean()
body = StepBody.create(model, optimizer, square, StepSettings(), prepare(optimizer))
micro = Micro(batch, signature(batch), Phase.ONLY, num_samples(batch))
interval_s = sys.getswitchinterval()
compiling = BackgroundCompilation(body, micro)
compiling.wait()
assert compiling.failure is None, compiling.failure
assert {"torch._dynamo", "torch._inductor.compile_fx"} <= set(sys.modules)
assert "flodl.engine.compile.passes.pipeline" in sys.modules
assert sys.getswitchinterval() == interval_s
if compiling.layout is not None:
    assert compiling.layout.layout in layouts and set(compiling.layout.times_s) == set(layouts)
from torch._dynamo import funcname_cache

loaded, read = set(sys.modules), set(funcname_cache.cache)
for layout in layouts:
    for _ in range(2):
        EagerRunner(compile_program(body, layouts=(layout,))[layout]).run_without_update(micro)
late = {name for name in set(sys.modules) - loaded if name.startswith("torch.")}
late -= {name for name in late if "compile_tasks" in name}
assert not late, f"what the other process had loaded was not loaded in time: {late}"
assert set(funcname_cache.cache) <= read, "a source that the other process had read was not read in time"
from torch._dynamo.utils import counters

found = counters["inductor"]
print(found["fxgraph_cache_hit"], found["fxgraph_cache_miss"])
"""


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the two tests below, whose programs differ: torch builds its C++ header only once."""
    return tmp_path_factory.mktemp("inductor")


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts",
    [
        "nn.Linear(16, 16), (torch.ones(8, 16),), [None]",
        "nn.Conv2d(3, 4, 3), (torch.ones(8, 3, 8, 8),), ['as given', 'channels last']",
    ],
    ids=["plain", "each layout alone"],
)
def test_what_a_worker_compiled_is_found_in_the_cache(cache_dir: Path, parts) -> None:
    # In its own process: the keys of the cache depend on how pytest loads its modules.
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache_dir)}
    command = [sys.executable, "-c", FOUND, parts]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    hits, misses = map(int, done.stdout.split())
    assert hits > 0
    assert misses == 0
