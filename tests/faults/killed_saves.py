"""Killed saves: each scenario runs once for every file system call it makes.

    python killed_saves.py FOLDER SCENARIO…

A child process counts its calls and kills itself at the k-th: before it, or, for a write, with half of the
bytes written. Then the same folder is opened as after a crash. Prints the number of calls and what was
found; fails at the first restart that does not find what it must.
"""

import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

import torch

from flodl.checkpoint import (
    BackgroundWriter,
    clean_bundles,
    last,
    latest_bundle,
    list_bundles,
    read_bundle,
    read_checkpoint,
    save_bundle,
    save_checkpoint,
)

CALLS = (
    "open",
    "write",
    "fsync",
    "close",
    "mkdir",
    "rename",
    "replace",
    "unlink",
    "rmdir",
    "chmod",
    "listdir",
)


def parts(step: int) -> dict:
    return {
        "model": {"w": torch.full((500,), float(step)), "tied": torch.ones(2)},
        "optimizer": {"state": {0: {"step": torch.tensor(step)}}, "lr": 0.1},
        "data": {"position": step},
    }


class Countdown:
    """Intercepts the calls of `os` in a child process, which dies at the chosen one."""

    def __init__(self, fatal: int) -> None:
        self.count, self.fatal = 0, fatal
        for name in CALLS:
            setattr(os, name, self.counted(name, getattr(os, name)))

    def counted(self, name, call):
        def counting(*args, **options):
            self.count += 1
            if self.count == self.fatal:
                if name == "write":
                    call(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return counting


def save_first(root: Path) -> None:
    save_bundle(root, 1, parts(1))


def save_second(root: Path) -> None:
    save_bundle(root, 2, parts(2))


def save_same_step(root: Path) -> None:
    save_bundle(root, 1, parts(2))


def save_in_background_and_prune(root: Path) -> None:
    with BackgroundWriter(root, keep=last(1)) as writer:
        writer.save(2, parts(2))


def save_file(root: Path) -> None:
    save_checkpoint(root / "model.fdl", parts(2)["model"])


def saved_before(root: Path) -> None:
    save_bundle(root, 1, parts(1))
    save_checkpoint(root / "model.fdl", parts(1)["model"])
    left = root / ".step-00000009.abcd.part"
    left.mkdir()
    (left / "model.fdl").write_bytes(b"cut off")


SCENARIOS = {
    "first": (lambda root: root.mkdir(), save_first, {None, 1}),
    "second": (saved_before, save_second, {1, 2}),
    "same_step": (saved_before, save_same_step, {1, 2}),
    "background": (saved_before, save_in_background_and_prune, {1, 2}),
    "file": (saved_before, save_file, {1, 2}),
}


def found_after_the_crash(root: Path, scenario: str) -> float | None:
    """Restart as a run would, and return the value found; it must be complete and from one save."""
    if scenario == "file":
        tensors, _ = read_checkpoint(root / "model.fdl")
        assert len(set(tensors["w"].tolist())) == 1
        return tensors["w"][0].item()
    clean_bundles(root)
    hidden = [name for name in os.listdir(root) if name.startswith(".step-")]
    assert not hidden, f"left behind: {hidden}"
    bundle, skipped = latest_bundle(root)
    assert not skipped, skipped
    if bundle is None:
        return None
    state = read_bundle(bundle)
    value = state["data"]["position"]
    assert (state["model"]["w"] == value).all()
    assert state["optimizer"]["state"][0]["step"] == value
    save_bundle(root, 50, parts(50))
    assert latest_bundle(root).bundle.step == 50
    assert len(list_bundles(root)) >= 2
    return value


def run_killed(root: Path, scenario: str, fatal: int) -> int:
    """Run the scenario in a child that dies at a call; return its status, and its count if it survived."""
    prepare, save, _ = SCENARIOS[scenario]
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(exist_ok=True)
    if scenario != "first":
        root.mkdir()
    prepare(root)
    child = os.fork()
    if child == 0:
        countdown = Countdown(fatal)
        try:
            save(root)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(3)
        os._exit(100 if countdown.count < fatal else 4)
    return os.waitpid(child, 0)[1]


def kill_at_every_call(folder: Path, scenario: str) -> None:
    seen: Counter[float | None] = Counter()
    fatal, finished = 0, False
    while not finished:
        fatal += 1
        status = run_killed(folder / "run", scenario, fatal)
        finished = os.WIFEXITED(status)
        if finished:
            assert os.WEXITSTATUS(status) == 100, f"call {fatal}: status {status}"
        else:
            assert os.WTERMSIG(status) == signal.SIGKILL
        value = found_after_the_crash(folder / "run", scenario)
        assert value in SCENARIOS[scenario][2], f"call {fatal}: found {value}"
        seen[value] += 1
    print(f"{scenario}: {fatal - 1} calls, found {dict(seen)}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in sys.argv[2:]:
        kill_at_every_call(Path(sys.argv[1]), chosen)
